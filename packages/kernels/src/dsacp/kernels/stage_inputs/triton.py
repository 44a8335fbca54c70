"""Triton kernel that packs a step's host inputs into the staging block."""

from collections.abc import Callable
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsacp.kernels.direct import addresses, cuda_device, launcher, takes_addresses
from dsacp.kernels.local_metadata.triton import clip
from dsacp.kernels.programs import check_programs

BLOCK = 256


@triton.jit(
    do_not_specialize=[
        "query_start_loc",
        "seq_lens",
        "num_rejected",
        "drafts",
        "out",
        "num_reqs",
        "num_tokens",
        "rows",
        "given",
        "held",
    ]
)
def _stage_inputs_kernel(
    query_start_loc,
    seq_lens,
    num_rejected,
    drafts,
    out,
    num_reqs,
    num_tokens,
    rows,
    given,
    held,
    HAS_REJECTED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Copy a block of rows; ``given`` rows of the mask are known, ``held`` have room in ``out``."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = row < num_reqs
    # Ascend makes a slice of a mask: `row == 0` would be an unconditional one before the block.
    if tl.program_id(0) == 0:
        tl.store(out, num_reqs)
    # Padded rows repeat the last start.
    start = tl.load(query_start_loc + tl.minimum(row, num_reqs), mask=row <= rows, other=0)
    tl.store(out + 1 + row, clip(start, 0, num_tokens), mask=row <= rows)
    length = tl.load(seq_lens + row, mask=real, other=0)
    tl.store(out + 2 + rows + row, length, mask=row < rows)
    rejected = tl.zeros_like(row)
    if HAS_REJECTED:
        rejected = tl.load(num_rejected + row, mask=real, other=0)
    tl.store(out + 2 + 2 * rows + row, rejected, mask=row < rows)
    part = tl.load(drafts + row, mask=row < given, other=1)
    tl.store(out + 2 + 3 * rows + row, part, mask=row < held)


def stage_inputs(
    query_start_loc: Tensor,
    seq_lens: Tensor,
    num_rejected: Tensor | None,
    drafts: Tensor | None,
    num_reqs: int,
    num_tokens: int,
    out: Tensor,
    rows: int,
    with_drafts: bool,
) -> None:
    """Launch the kernel; same contract as the reference."""
    device = cuda_device(out)
    rejected = seq_lens if num_rejected is None else num_rejected
    mask, given = (seq_lens, 0) if drafts is None else (drafts, num_reqs)
    inputs = query_start_loc, seq_lens, rejected, mask
    integers = num_reqs, num_tokens, rows, given, rows if with_drafts else 0
    launch = _launcher(rows, num_rejected is not None, out.device.type, device)
    if device is None or not takes_addresses(_stage_inputs_kernel):
        launch(*inputs, out, *integers)
        return
    launch(*addresses(out, *inputs), out.data_ptr(), *integers)


@lru_cache(maxsize=64)
def _launcher(
    rows: int, has_rejected: bool, device_type: str, device: int | None
) -> Callable[..., None]:
    constants = {"HAS_REJECTED": has_rejected, "BLOCK": BLOCK}
    sample: tuple[torch.dtype | int, ...] = (*[torch.int32] * 5, *[rows] * 5)
    grid = (triton.cdiv(rows + 1, BLOCK), 1, 1)
    check_programs("stage_inputs", grid[0], device_type)
    return launcher(_stage_inputs_kernel, grid, device, sample, constants)
