"""Checks of one ``draft_steps`` call: shapes and integers only, never device values."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dsacp.core import CapacityError, LayoutError, TokenShard
from dsacp.kernels.checks import (
    check_block_table,
    check_device,
    check_int32,
    check_layout,
    check_layouts_device,
    check_rope_bank,
    check_rope_tables,
    check_strided,
    check_writable,
)
from dsacp.kernels.fields import DRAFT_FIELDS


def check_inputs(
    query_start_loc: Tensor,
    seq_lens: Tensor,
    num_rejected: Tensor,
    num_reqs: Tensor,
    drafts: Tensor | None,
    rows: int,
) -> None:
    """Raise unless the staged inputs cover ``rows`` requests."""
    masks = {} if drafts is None else {"drafts": drafts}
    check_int32(
        query_start_loc=query_start_loc,
        seq_lens=seq_lens,
        num_rejected=num_rejected,
        num_reqs=num_reqs,
        **masks,
    )
    lengths = (seq_lens, num_rejected, *masks.values())
    held = min(query_start_loc.numel() - 1, *[tensor.numel() for tensor in lengths])
    if held < rows or num_reqs.numel() != 1:
        raise CapacityError(
            f"step 0 needs {rows} requests and one num_reqs, the inputs hold {held} requests and "
            f"{num_reqs.numel()}: stage the inputs with the captured row count"
        )


def check_steps(
    row_counts: Sequence[int],
    token_counts: Sequence[int],
    start_counts: Sequence[int],
    tp_size: int,
    tp_rank: int,
) -> None:
    """Raise unless the counts describe steps of which the later have one token a request."""
    TokenShard(0, tp_size, tp_rank)
    if not row_counts or len(row_counts) != len(token_counts) or min(row_counts) < 0:
        raise LayoutError(
            f"expected at least one step with one row count and one token count each, "
            f"found rows {list(row_counts)} and tokens {list(token_counts)}"
        )
    if token_counts[0] < 0 or list(row_counts[1:]) != list(token_counts[1:]):
        raise LayoutError(
            f"expected one token a request after the first step, found rows {list(row_counts)} "
            f"and tokens {list(token_counts)}: pass the padded rows as tokens"
        )
    if len(start_counts) != len(row_counts) or any(
        starts < rows for starts, rows in zip(start_counts, row_counts, strict=False)
    ):
        raise LayoutError(
            f"expected start counts no smaller than the {list(row_counts)} rows of their steps, "
            f"found {list(start_counts)}: pass none, or the rows of the largest capture"
        )


def check_banks(
    block_tables: Sequence[Tensor],
    block_sizes: Sequence[int],
    cos_tables: Sequence[Tensor],
    sin_tables: Sequence[Tensor],
    pointers: Tensor,
    arena: Tensor,
    layout: Tensor,
    rope_bank: Tensor,
    rope_layout: Tensor,
    last_step: int,
) -> None:
    """Raise unless tables, layouts and storages belong together and hold ``last_step``."""
    check_int32(arena=arena)
    for table, block_size in zip(block_tables, block_sizes, strict=False):
        check_block_table("a block table", table, block_size)
    for cos_table, sin_table in zip(cos_tables, sin_tables, strict=False):
        check_rope_tables(cos_table, sin_table)
    groups, configs = len(block_tables), len(cos_tables)
    _check_layout("layout", layout, groups, len(DRAFT_FIELDS), last_step)
    _check_layout("rope_layout", rope_layout, configs, 2, last_step)
    if len(block_sizes) != groups or len(sin_tables) != configs:
        raise LayoutError(
            f"expected a block size for each of {groups} groups and a sin table for each of "
            f"{configs} RoPE configurations, found {len(block_sizes)} and {len(sin_tables)}"
        )
    check_strided(pointers=pointers)
    if pointers.dtype is not torch.int64 or pointers.numel() < 3 * groups + 2 * configs:
        raise LayoutError(
            f"expected pointers as int64 of {3 * groups + 2 * configs} words, found "
            f"{pointers.dtype} of {pointers.numel()}: rebuild it when a table is bound"
        )
    check_rope_bank(rope_bank)
    check_device(arena, *block_tables, *cos_tables, *sin_tables, pointers, rope_bank)
    check_layouts_device(arena, layout, rope_layout)
    check_writable(arena, rope_bank)


def _check_layout(name: str, layout: Tensor, leading: int, fields: int, last_step: int) -> None:
    check_layout(name, layout, leading, fields)
    if not 0 <= last_step < layout.shape[1]:
        raise CapacityError(
            f"the call ends at draft step {last_step}, {name} holds steps 0.."
            f"{layout.shape[1] - 1}: allocate more banks or draft fewer tokens"
        )
