"""Pooling of completed groups of raw tokens into compressed rows (upstream U15)."""

import torch
from torch import Tensor

from dsacp.app.model.caches import PagedCache
from dsacp.app.model.ops import flat_slots, rms_norm, rotate
from dsacp.app.model.weights import CompressorWeights
from dsacp.core import LayoutError
from dsacp.drafting_cache import GroupMetadata


def compress(
    weights: CompressorWeights,
    states: Tensor,
    raw: GroupMetadata,
    compressed: GroupMetadata,
    state_cache: PagedCache,
    cache: PagedCache,
) -> None:
    """Keep every token's raw state, then write the rows of all groups that are complete.

    A group may span steps, so that its raw rows are read back from the paged state cache.

    Args:
        weights: score bias by place in the group; [R, width].
        states: [Tp, 2 * width], values and scores of all tokens.
        raw: metadata of the state group, whose slots and table place raw tokens.
        compressed: metadata of the compressed group.
        state_cache: paged raw states.
        cache: paged compressed rows.

    Raises:
        LayoutError: a group has no slots or no compressed rows.
    """
    rows = compressed.compressor
    if raw.slot_mapping is None or rows is None:
        raise LayoutError(
            "expected raw slots in the state group and compressor rows in the compressed group, "
            "found none: pass the groups of model_groups()"
        )
    state_cache.write(raw.slot_mapping, states)
    ratio, width = weights.bias.shape
    places = torch.arange(ratio, device=states.device)
    positions = rows.positions.long().unsqueeze(-1) + places
    slots = flat_slots(raw.block_table, rows.requests, positions, state_cache.block_size)
    values, scores = state_cache.storage[slots].split(width, dim=-1)
    shares = torch.softmax(scores + weights.bias, dim=1)
    pooled = rms_norm((shares * values).sum(1))
    cache.write(rows.slot_mapping, rotate(pooled, rows.cos, rows.sin))
