"""Records of all cores at once, from their ends."""

import triton
import triton.language as tl

from dsacp.kernels.sas_plan.triton_costs import until


@triton.jit
def blocks_before(
    request, row, query_start_loc, seq_lens, scratch, stride, rows, kind, family, block_shift,
    per_block, span, reach, ratio_shift, cap,
):  # fmt: skip
    """KV blocks of all rows before cursors; the cursor of the end stands at request ``rows``."""
    whole = tl.load(scratch + 3 * stride + request)
    # Ascend loads every lane, masked ones too: no address may leave the batch.
    there = tl.minimum(request, tl.maximum(rows - 1, 0))
    begin = tl.load(query_start_loc + there)
    query_len = tl.load(query_start_loc + tl.minimum(request + 1, rows)) - begin
    seq_len = tl.load(seq_lens + there)
    origin = tl.load(scratch + 4 * stride + there)
    _cost, blocks = until(
        row.to(whole.dtype), query_len.to(whole.dtype), seq_len.to(whole.dtype), kind, family,
        block_shift, per_block, span, reach, ratio_shift, cap,
    )  # fmt: skip
    return tl.where(row > 0, origin + blocks, whole)


@triton.jit
def write_records(
    out, ends, step, count, cores, record, paired, ceiling, query_start_loc, seq_lens, scratch,
    stride, rows, kind, family, block_shift, per_block, span, reach, ratio_shift, cap,
    MAX_CORES: tl.constexpr,
):  # fmt: skip
    """Write the records of ``count`` cores, a lane a core (upstream U4).

    ``ends`` points at the request of the first core's end; the next core's is ``step`` further. A
    ``ceiling`` above 0 stands for the largest count of KV blocks.
    """
    core = tl.arange(0, MAX_CORES)
    enabled = core < count
    # What has no cost at the end belongs to the last core.
    inner = core + 1 < count
    later = (core > 0) & enabled
    end_request = tl.load(ends + core * step, mask=inner, other=0)
    end_request = tl.where(inner, end_request, rows)
    end_row = tl.load(ends + (MAX_CORES + core) * step, mask=inner, other=0)
    # The first lane's word, which Ascend loads too, is in the margin before the ends.
    start_request = tl.load(ends + (core - 1) * step, mask=later, other=0)
    start_row = tl.load(ends + (MAX_CORES + core - 1) * step, mask=later, other=0)
    at = out + record * (core << paired)
    for copy in tl.static_range(0, 2):
        there = enabled & (copy <= paired)
        word = at + copy * record
        tl.store(word, core * 0 + 1, mask=there)
        tl.store(word + 1, start_request, mask=there)
        tl.store(word + 2, start_row, mask=there)
        tl.store(word + 4, end_request, mask=there)
        tl.store(word + 5, end_row, mask=there)
    if paired > 0:
        until_end = blocks_before(
            end_request, end_row, query_start_loc, seq_lens, scratch, stride, rows, kind, family,
            block_shift, per_block, span, reach, ratio_shift, cap,
        )  # fmt: skip
        until_start = blocks_before(
            start_request, start_row, query_start_loc, seq_lens, scratch, stride, rows, kind,
            family, block_shift, per_block, span, reach, ratio_shift, cap,
        )  # fmt: skip
        most = tl.max(tl.where(enabled, until_end - until_start, 0), 0).to(tl.int32)
        most = tl.where(ceiling > 0, ceiling, most)
        # Idle pairs take part in the hand-shake too.
        tl.store(at + 8, core * 0 + most, mask=core < cores)
        tl.store(at + record + 8, core * 0 + most, mask=core < cores)
