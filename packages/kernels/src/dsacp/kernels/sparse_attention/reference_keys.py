"""Which keys a token sees in torch: its window, its listed slots, its compressed groups."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """The tokens of one chunk: owner, absolute position, KV length of the owner."""

    request: Tensor
    position: Tensor
    length: Tensor

    def part(self, chunk: slice) -> "Rows":
        """Return the tokens of a part of the chunk."""
        return Rows(self.request[chunk], self.position[chunk], self.length[chunk])


@dataclass(frozen=True)
class _Keys:
    """Flat cache slots [T, L] and which of them exist."""

    slot: Tensor
    valid: Tensor


@dataclass(frozen=True)
class Sources:
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


def longest_of(seq_lens: Tensor) -> int:
    """Return a bound of every length; exact on the CPU only, where reading it is no sync."""
    return max(int(seq_lens.max().item()), 1) if seq_lens.device.type == "cpu" else 1 << 62


def _window(rows: Rows, src: Sources) -> tuple[_Keys, Tensor]:
    """Return the window keys and whether the window of each row holds any."""
    low = (rows.position - src.left).clamp(min=0)
    high = torch.minimum(rows.position + src.right, rows.length - 1)
    entry = low[:, None] + torch.arange(src.window_width, device=low.device)
    keys = _paged(entry, entry <= high[:, None], src.table, rows.request, src.kv)
    return keys, high >= low


def _listed(rows: Rows, slots: Tensor, cache: Tensor) -> tuple[_Keys, Tensor]:
    """Return the leading non-negative flat slots of each row (DSpark)."""
    rank = torch.arange(slots.shape[1], device=slots.device)
    leading = (slots >= 0).cumprod(1).to(torch.bool) & (rank < rows.length[:, None])
    slot = slots.to(torch.int64)
    valid = leading & (slot < cache.shape[0] * cache.shape[1])
    return _Keys(torch.where(valid, slot, 0), valid), leading.any(1)


def _compressed(
    rows: Rows, table: Tensor, cache: Tensor, src: Sources, chosen: Tensor | None
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


def gather_keys(rows: Rows, src: Sources, chunk: slice) -> tuple[Tensor, Tensor, Tensor]:
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


def make_sources(
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
) -> Sources:
    """Bound the gathered keys by the window, the tables and the longest request."""
    window = min(left + right + 1, table.shape[1] * kv.shape[1], longest)
    compressed = 0
    if chosen is not None:
        compressed = min(chosen.shape[2], longest // ratio)
    elif cmp_kv is not None and cmp_table is not None:
        compressed = min(cmp_table.shape[1] * cmp_kv.shape[1], longest // ratio)
    if listed is not None:
        window = listed.shape[2]
    return Sources(
        kv, table, left, right, listed, cmp_kv, cmp_table, chosen, ratio, window, compressed
    )
