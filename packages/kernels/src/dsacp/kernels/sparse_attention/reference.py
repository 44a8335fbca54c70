"""Sparse attention with shared keys and values, in torch (spec ascend 2.2): the kernel's oracle.

Attention is batched over tokens: every token gathers at most its window plus its compressed keys.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dsacp.kernels.covered_rows.reference import plan_mask, token_owner

# Bounds the gathered keys of one batch of tokens, so that a long prefill fits in memory.
GATHER_ELEMENTS = 1 << 22


@dataclass(frozen=True)
class _Rows:
    """The tokens of one chunk: owner, absolute position, KV length of the owner."""

    request: Tensor
    position: Tensor
    length: Tensor

    def part(self, chunk: slice) -> "_Rows":
        return _Rows(self.request[chunk], self.position[chunk], self.length[chunk])


@dataclass(frozen=True)
class _Keys:
    """Flat cache slots [T, L] and which of them exist."""

    slot: Tensor
    valid: Tensor


@dataclass(frozen=True)
class _Sources:
    """Where keys come from, and the most that one token can have of them."""

    kv: Tensor
    table: Tensor
    left: int
    right: int
    listed: Tensor | None
    cmp_kv: Tensor | None
    cmp_table: Tensor | None
    chosen: Tensor | None
    ratio: int
    window_width: int
    cmp_width: int


def _paged(entry: Tensor, valid: Tensor, table: Tensor, request: Tensor, cache: Tensor) -> _Keys:
    """Turn entry numbers into flat slots; entries outside the table or the cache do not exist."""
    num_blocks, block_size = cache.shape[0], cache.shape[1]
    column = entry.div(block_size, rounding_mode="floor")
    valid = valid & (column >= 0) & (column < table.shape[1])
    page = table[request[:, None], torch.where(valid, column, 0)].to(torch.int64)
    valid = valid & (page >= 0) & (page < num_blocks)
    return _Keys(torch.where(valid, page * block_size + entry % block_size, 0), valid)


def _longest(seq_lens: Tensor) -> int:
    """Return a bound of every length; exact on the CPU only, where reading it is no sync."""
    return max(int(seq_lens.max().item()), 1) if seq_lens.device.type == "cpu" else 1 << 62


def _window(rows: _Rows, src: _Sources) -> tuple[_Keys, Tensor]:
    """Return the window keys and whether the window of each row holds any."""
    low = (rows.position - src.left).clamp(min=0)
    high = torch.minimum(rows.position + src.right, rows.length - 1)
    entry = low[:, None] + torch.arange(src.window_width, device=low.device)
    keys = _paged(entry, entry <= high[:, None], src.table, rows.request, src.kv)
    return keys, high >= low


def _listed(rows: _Rows, slots: Tensor, cache: Tensor) -> tuple[_Keys, Tensor]:
    """Return the leading non-negative flat slots of each row (DSpark)."""
    rank = torch.arange(slots.shape[1], device=slots.device)
    leading = (slots >= 0).cumprod(1).to(torch.bool) & (rank < rows.length[:, None])
    slot = slots.to(torch.int64)
    valid = leading & (slot < cache.shape[0] * cache.shape[1])
    return _Keys(torch.where(valid, slot, 0), valid), leading.any(1)


def _compressed(
    rows: _Rows, table: Tensor, cache: Tensor, src: _Sources, chosen: Tensor | None
) -> _Keys:
    """Return the complete groups up to each row's position: all of them, or the chosen ones."""
    limit = ((rows.position + 1).clamp(min=0) // src.ratio)[:, None]
    rank = torch.arange(src.cmp_width, device=limit.device)
    entry = rank.expand(limit.shape[0], -1)
    if chosen is not None:
        entry = chosen[:, : src.cmp_width].to(torch.int64)
    valid = (rank < limit) & (entry >= 0) & (entry < limit)
    return _paged(entry, valid, table, rows.request, cache)


def _fetch(cache: Tensor, keys: _Keys) -> Tensor:
    """Gather keys [T, L, D]; absent ones are zero, so that a poisoned cache row cannot leak."""
    block_size = cache.shape[1]
    page = keys.slot.div(block_size, rounding_mode="floor")
    gathered = cache[page, keys.slot % block_size, 0]
    return gathered.masked_fill(~keys.valid[:, :, None], 0)


def _attend(q: Tensor, keys: Tensor, valid: Tensor, sinks: Tensor, scale: float) -> Tensor:
    """Softmax over the keys with a sink logit per head, accumulated in fp32 (fp64 for fp64)."""
    wide = torch.float64 if q.dtype is torch.float64 else torch.float32
    kv = keys.to(wide)
    scores = torch.bmm(q.to(wide), kv.transpose(1, 2)) * scale
    scores = scores.masked_fill(~valid[:, None, :], float("-inf"))
    sink = sinks.to(wide)[None, :]
    peak = torch.maximum(scores.amax(2), sink)
    # A row without keys and with a sink of -inf has no finite logit at all.
    peak = torch.where(peak == float("-inf"), 0, peak)
    weight = torch.exp(scores - peak[:, :, None])
    total = weight.sum(2) + torch.exp(sink - peak)
    # The kernels round the unnormalised weights to the cache's type before the second product.
    mixed = torch.bmm(weight.to(keys.dtype).to(wide), kv)
    return mixed / total[:, :, None]


def _gather(rows: _Rows, src: _Sources, chunk: slice) -> tuple[Tensor, Tensor, Tensor]:
    """Return keys [T, L, D], which of them exist, and which rows see any."""
    if src.listed is not None:
        keys, seen = _listed(rows, src.listed[chunk, 0], src.kv)
    else:
        keys, seen = _window(rows, src)
    gathered, valid = _fetch(src.kv, keys), keys.valid
    if src.cmp_kv is not None and src.cmp_table is not None:
        chosen = None if src.chosen is None else src.chosen[chunk, 0]
        more = _compressed(rows, src.cmp_table, src.cmp_kv, src, chosen)
        gathered = torch.cat([gathered, _fetch(src.cmp_kv, more)], 1)
        valid = torch.cat([valid, more.valid], 1)
    return gathered, valid, seen & valid.any(1)


def _run(
    q: Tensor, rows: _Rows, src: _Sources, sinks: Tensor, scale: float, out: Tensor, write: Tensor
) -> None:
    """Attend chunk by chunk and store the rows that ``write`` selects."""
    per_token = (src.window_width + src.cmp_width) * q.shape[2]
    step = max(GATHER_ELEMENTS // max(per_token, 1), 1)
    for begin in range(0, q.shape[0], step):
        chunk = slice(begin, begin + step)
        keys, valid, seen = _gather(rows.part(chunk), src, chunk)
        result = _attend(q[chunk], keys, valid, sinks, scale).to(out.dtype)
        result = torch.where(seen[:, None, None], result, 0)
        out[chunk].copy_(torch.where(write[chunk, None, None], result, out[chunk]))


def _sources(
    kv: Tensor,
    table: Tensor,
    left: int,
    right: int,
    listed: Tensor | None,
    cmp_kv: Tensor | None,
    cmp_table: Tensor | None,
    chosen: Tensor | None,
    ratio: int,
    longest: int,
) -> _Sources:
    """Bound the gathered keys by the window, the tables and the longest request."""
    window = min(left + right + 1, table.shape[1] * kv.shape[1], longest)
    compressed = 0
    if chosen is not None:
        compressed = min(chosen.shape[2], longest // ratio)
    elif cmp_kv is not None and cmp_table is not None:
        compressed = min(cmp_table.shape[1] * cmp_kv.shape[1], longest // ratio)
    if listed is not None:
        window = listed.shape[2]
    return _Sources(
        kv, table, left, right, listed, cmp_kv, cmp_table, chosen, ratio, window, compressed
    )


def sparse_attention(
    q: Tensor,
    kv: Tensor,
    block_table: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    sinks: Tensor,
    out: Tensor,
    cmp_kv: Tensor | None,
    cmp_block_table: Tensor | None,
    cmp_indices: Tensor | None,
    ori_indices: Tensor | None,
    sas_metadata: Tensor | None,
    scale: float,
    window_left: int,
    window_right: int,
    cmp_ratio: int,
    record_size: int,
    num_records: int,
    paired: bool,
    reads_core0_start: bool,
) -> None:
    """Write the attention output of every owned and covered row; see the package function."""
    if q.shape[0] == 0 or seq_lens.numel() == 0:
        return
    request, index, write = token_owner(query_start_loc, q.shape[0])
    if sas_metadata is not None:
        plan = (record_size, num_records, paired, reads_core0_start)
        write = write & plan_mask(sas_metadata, request, index, *plan)
    starts = query_start_loc.to(torch.int64)
    length = seq_lens.to(torch.int64)[request]
    rows = _Rows(request, length - (starts[1:] - starts[:-1])[request] + index, length)
    src = _sources(
        kv, block_table, window_left, window_right, ori_indices, cmp_kv, cmp_block_table,
        cmp_indices, cmp_ratio, _longest(seq_lens),
    )  # fmt: skip
    _run(q, rows, src, sinks, scale, out, write)
