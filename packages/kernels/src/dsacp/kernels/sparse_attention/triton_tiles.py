"""Key tiles of the attention kernel: look up, load, and fold into an online softmax."""

import triton
import triton.language as tl

from dsacp.kernels.triton_integers import divide_by


@triton.jit
def split_entry(entry, SIZE: tl.constexpr, SHIFT: tl.constexpr):
    """Split an entry number into (block, offset inside it)."""
    block = divide_by(entry, SIZE, SHIFT)
    return block, entry - block * SIZE


@triton.jit
def _held(page, num_blocks):
    """Return a page that the cache has in place of one that it has not.

    By its value, not by a mask: CUDA's layout pass of Triton 3.6 and 3.7 fails on a selection here.
    """
    return tl.maximum(tl.minimum(page, num_blocks - 1), 0)


@triton.jit
def _page_slot(entry, valid, table, columns, num_blocks, SIZE: tl.constexpr, SHIFT: tl.constexpr):
    """Look an entry up in a block table; absent pages invalidate it.

    Ascend loads every lane and selects afterwards: what is not valid reads the first column.
    """
    column, offset = split_entry(entry, SIZE, SHIFT)
    valid = valid & (column >= 0) & (column < columns)
    page = tl.load(table + tl.where(valid, column, 0), mask=valid, other=-1)
    return _held(page, num_blocks), offset, valid & (page >= 0) & (page < num_blocks)


@triton.jit
def _dot(left, right, WIDEN: tl.constexpr):
    """Multiply tiles in their own type; ``WIDEN`` first turns them into fp32."""
    if WIDEN:
        product = tl.dot(left.to(tl.float32), right.to(tl.float32), input_precision="ieee")
    else:
        product = tl.dot(left, right, input_precision="ieee")
    return product


@triton.jit
def _absorb(
    query, cache, page_stride, page, offset, valid, scale, peak, total, mixed,
    DIM: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Fold one tile of keys into the running maximum, sum and weighted values.

    Pages and offsets lie in the cache, also where they are not valid.
    """
    dim = tl.arange(0, DIM)
    slot = page.to(tl.int64) * page_stride + offset.to(tl.int64) * DIM
    keys = tl.load(cache + slot[:, None] + dim[None, :], mask=valid[:, None], other=0.0)
    score = _dot(query, tl.trans(keys), WIDEN) * scale
    score = tl.where(valid[None, :], score, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(score, 1))
    weight = tl.exp(score - new_peak[:, None])
    decay = tl.exp(peak - new_peak)
    total = total * decay + tl.sum(weight, 1)
    mixed = mixed * decay[:, None] + _dot(weight.to(keys.dtype), keys, WIDEN)
    return new_peak, total, mixed


@triton.jit
def absorb_listed(
    query, cache, page_stride, num_blocks, slots, count, scale, peak, total, mixed,
    SIZE: tl.constexpr, SHIFT: tl.constexpr, KEYS: tl.constexpr,
    DIM: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Fold the first ``count`` flat slots of a list."""
    for first in range(0, count, KEYS):
        rank = first + tl.arange(0, KEYS)
        valid = rank < count
        slot = tl.load(slots + rank, mask=valid, other=0)
        page, offset = split_entry(slot, SIZE, SHIFT)
        inside = valid & (page >= 0) & (page < num_blocks)
        peak, total, mixed = _absorb(
            query, cache, page_stride, _held(page, num_blocks), offset, inside, scale,
            peak, total, mixed, DIM, WIDEN,
        )  # fmt: skip
    return peak, total, mixed


@triton.jit
def absorb_paged(
    query, cache, page_stride, num_blocks, table, columns, low, count, scale,
    peak, total, mixed,
    SIZE: tl.constexpr, SHIFT: tl.constexpr, KEYS: tl.constexpr,
    DIM: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Fold ``count`` consecutive entries from ``low`` on."""
    for first in range(0, count, KEYS):
        rank = first + tl.arange(0, KEYS)
        page, offset, valid = _page_slot(
            low + rank, rank < count, table, columns, num_blocks, SIZE, SHIFT
        )
        peak, total, mixed = _absorb(
            query, cache, page_stride, page, offset, valid, scale, peak, total, mixed, DIM, WIDEN
        )
    return peak, total, mixed


@triton.jit
def absorb_chosen(
    query, cache, page_stride, num_blocks, table, columns, chosen, count, limit, scale,
    peak, total, mixed,
    SIZE: tl.constexpr, SHIFT: tl.constexpr, KEYS: tl.constexpr,
    DIM: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Fold the entries that the first ``count`` indices name, all below ``limit``."""
    for first in range(0, count, KEYS):
        rank = first + tl.arange(0, KEYS)
        entry = tl.load(chosen + rank, mask=rank < count, other=-1)
        page, offset, valid = _page_slot(
            entry, (entry >= 0) & (entry < limit), table, columns, num_blocks, SIZE, SHIFT
        )
        peak, total, mixed = _absorb(
            query, cache, page_stride, page, offset, valid, scale, peak, total, mixed, DIM, WIDEN
        )
    return peak, total, mixed
