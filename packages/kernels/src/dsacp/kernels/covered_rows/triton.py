"""Triton kernel of plan coverage, and the plan look-up that other kernels share."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsacp.kernels.programs import check_programs
from dsacp.kernels.triton_integers import divide_by, power_shift
from dsacp.kernels.triton_requests import find_owners, request_tiles

RECORDS = 64
TOKENS_PER_PROGRAM = 32


@triton.jit
def plan_hit(
    words,
    core,
    request,
    row,
    num_records,
    RECORD_SIZE: tl.constexpr,
    READS_CORE0_START: tl.constexpr,
):
    """Return int32 1 where an enabled core's range holds the row (upstream U8)."""
    launched = core < num_records
    record = words + core * RECORD_SIZE
    enabled = tl.load(record, mask=launched, other=0) == 1
    read_start = launched
    if not READS_CORE0_START:
        read_start = launched & (core > 0)
    first = tl.load(record + 1, mask=read_start, other=0)
    first_row = tl.load(record + 2, mask=read_start, other=0)
    last = tl.load(record + 4, mask=launched, other=0)
    stop_row = tl.load(record + 5, mask=launched, other=0)
    if READS_CORE0_START:
        takes_last = stop_row != 0
    else:
        start_s2 = tl.load(record + 3, mask=read_start, other=0)
        stop_s2 = tl.load(record + 6, mask=launched, other=0)
        moved = (first_row != stop_row) | (start_s2 != stop_s2)
        ends_inside = (stop_row != 0) | (stop_s2 != 0)
        takes_last = ((first == last) & moved) | ((first != last) & ends_inside)
    inside = (request > first) | ((request == first) & (row >= first_row))
    in_last = (request == last) & takes_last & ((row < stop_row) | (stop_row == 0))
    return (enabled & inside & ((request < last) | in_last)).to(tl.int32)


@triton.jit
def row_covered(
    words, request, row, num_records,
    RECORD_SIZE: tl.constexpr, PAIRED: tl.constexpr, READS_CORE0_START: tl.constexpr,
    RECORD_SLOTS: tl.constexpr,
):  # fmt: skip
    """Return 1 where an enabled core, or both cores of a pair, take the row."""
    core = tl.arange(0, RECORD_SLOTS)
    hit = plan_hit(words, core, request, row, num_records, RECORD_SIZE, READS_CORE0_START)
    if PAIRED:
        odd = core & 1
        covered = tl.minimum(tl.max(hit * (1 - odd), 0), tl.max(hit * odd, 0))
    else:
        covered = tl.max(hit, 0)
    return covered


@triton.jit(
    do_not_specialize=[
        "words",
        "query_start_loc",
        "out",
        "num_reqs",
        "num_tokens",
        "num_records",
    ]
)
def _covered_rows_kernel(
    words,
    query_start_loc,
    out,
    num_reqs,
    num_tokens,
    num_records,
    TOKENS_PER_ROW: tl.constexpr,
    ROW_SHIFT: tl.constexpr,
    RECORD_SIZE: tl.constexpr,
    PAIRED: tl.constexpr,
    READS_CORE0_START: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_REQS: tl.constexpr,
    MORE_REQS: tl.constexpr,
    RECORD_SLOTS: tl.constexpr,
):
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    request = find_owners(query_start_loc, token, num_reqs, BLOCK_REQS, MORE_REQS)
    owned = (request < num_reqs) & (token >= tl.load(query_start_loc))
    # A request is at most num_reqs, which has a start too.
    start = tl.load(query_start_loc + request)
    row = divide_by(token - start, TOKENS_PER_ROW, ROW_SHIFT)
    core = tl.arange(0, RECORD_SLOTS)[None, :]
    hit = plan_hit(
        words, core, request[:, None], row[:, None], num_records, RECORD_SIZE, READS_CORE0_START
    )
    covered = tl.max(hit, 1)
    if PAIRED:
        odd = core & 1
        covered = tl.minimum(tl.max(hit * (1 - odd), 1), tl.max(hit * odd, 1))
    covered = tl.where(owned, covered, 0)
    tl.store(out + token, covered.to(tl.int8), mask=token < num_tokens)


def covered_rows(
    words: Tensor,
    query_start_loc: Tensor,
    out: Tensor,
    record_size: int,
    num_records: int,
    paired: bool,
    reads_core0_start: bool,
    tokens_per_row: int,
) -> None:
    """Launch the kernel; same contract as the reference."""
    if out.numel() == 0:
        return
    num_reqs = query_start_loc.numel() - 1
    programs = triton.cdiv(out.numel(), TOKENS_PER_PROGRAM)
    check_programs("covered_rows", programs, out.device.type)
    _covered_rows_kernel[(programs,)](
        words,
        query_start_loc,
        out.view(torch.int8),
        num_reqs,
        out.numel(),
        num_records,
        TOKENS_PER_ROW=tokens_per_row,
        ROW_SHIFT=power_shift(tokens_per_row),
        RECORD_SIZE=record_size,
        PAIRED=paired,
        READS_CORE0_START=reads_core0_start,
        BLOCK=TOKENS_PER_PROGRAM,
        RECORD_SLOTS=RECORDS,
        **request_tiles(num_reqs),
    )
