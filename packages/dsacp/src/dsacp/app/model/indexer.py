"""The lightning indexer: which compressed rows a query attends to (upstream U14)."""

import torch
from torch import Tensor

from dsacp.app.model.caches import PagedCache
from dsacp.app.model.ops import flat_slots, local_rows, rotate
from dsacp.app.model.weights import IndexerWeights
from dsacp.core import LayoutError
from dsacp.drafting_cache import GroupMetadata
from dsacp.kernels import covered_rows

QUERIES_PER_ROW = 4
PLAN_HEADS = 64
"""Head count that index plans are made for, whatever a small model has (upstream U12)."""
TIE_STEP = 1e-6
"""Scores of 0 are common after the ReLU; later rows win ties, whatever sort the device has."""


def select_rows(
    weights: IndexerWeights,
    x: Tensor,
    group: GroupMetadata,
    cache: PagedCache,
    cos: Tensor,
    sin: Tensor,
    *,
    topk: int,
    ratio: int,
    num_cores: int,
) -> tuple[Tensor, Tensor]:
    """Choose the best ``topk`` compressed rows for every local query.

    Args:
        weights: the indexer's weights.
        x: [n, H], normed hidden rows of the rank's own tokens.
        group: the indexer group's metadata.
        cache: its compressed keys.
        cos: [n, rope_dim] of the queries' positions.
        sin: [n, rope_dim].
        topk: rows to choose.
        ratio: raw tokens of one compressed row.
        num_cores: cores that the plan was made for.

    Returns:
        int32 [n, 1, topk], best first and -1 where there is none, and bool [n]: rows that the plan
        leaves out are False, and on a device they would hold whatever was there.

    Raises:
        LayoutError: the group has no plan.
    """
    if group.qli_metadata is None:
        raise LayoutError("expected qli_metadata in the indexer group, found none")
    owner, position = local_rows(group, x.shape[0])
    scores = _scores(weights, x, group, cache, owner, rotate_queries(weights, x, cos, sin))
    entries = torch.arange(scores.shape[1], device=x.device)
    visible = entries < ((position + 1) // ratio).unsqueeze(-1)
    ranked = (scores + entries * TIE_STEP).masked_fill(~visible, -torch.inf)
    best, chosen = ranked.topk(min(topk, scores.shape[1]), dim=-1)
    result = x.new_full((x.shape[0], 1, topk), -1, dtype=torch.int32)
    result[:, 0, : chosen.shape[1]] = torch.where(best == -torch.inf, -1, chosen).int()
    covered = covered_rows(
        group.qli_metadata,
        group.local_query_start_loc,
        "a2",
        PLAN_HEADS,
        num_cores,
        QUERIES_PER_ROW,
        num_tokens=x.shape[0],
    )
    return result, covered


def rotate_queries(weights: IndexerWeights, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return the rotated index queries, [n, heads, dim]."""
    heads = weights.head.shape[1]
    return rotate((x @ weights.query).view(x.shape[0], heads, -1), cos, sin)


def _scores(
    weights: IndexerWeights,
    x: Tensor,
    group: GroupMetadata,
    cache: PagedCache,
    owner: Tensor,
    queries: Tensor,
) -> Tensor:
    table = group.block_table
    entries = torch.arange(table.shape[1] * cache.block_size, device=x.device)
    requests = torch.arange(table.shape[0], device=x.device)
    slots = flat_slots(table, requests, entries.expand(table.shape[0], -1), cache.block_size)
    keys = cache.storage[slots][owner]
    matches = torch.relu(queries @ keys.transpose(1, 2))
    return ((x @ weights.head).unsqueeze(1) @ matches).squeeze(1)
