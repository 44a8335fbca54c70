"""Random paged batches, hand-written plans, and an attention oracle of plain Python loops."""

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

POISON = 0x7FFFFFFF


@dataclass(frozen=True)
class Batch:
    q: Tensor
    kv: Tensor
    block_table: Tensor
    query_start_loc: Tensor
    seq_lens: Tensor
    sinks: Tensor
    scale: float
    window_left: int
    window_right: int = 0
    cmp_ratio: int = 1
    cmp_kv: Tensor | None = None
    cmp_block_table: Tensor | None = None
    cmp_indices: Tensor | None = None
    ori_indices: Tensor | None = None

    def args(self) -> tuple[Tensor, ...]:
        return (
            self.q,
            self.kv,
            self.block_table,
            self.query_start_loc,
            self.seq_lens,
            self.sinks,
        )

    def options(self) -> dict[str, Any]:
        names = (
            "scale window_left window_right cmp_ratio cmp_kv cmp_block_table cmp_indices "
            "ori_indices"
        )
        return {name: getattr(self, name) for name in names.split()}

    def with_(self, **changes: Any) -> "Batch":
        return replace(self, **changes)


def paged_cache(
    rng: random.Random, lengths: Sequence[int], block_size: int, dim: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """A NaN-filled cache whose used slots alone hold keys, and its shuffled block table."""
    pages = [-(-length // block_size) for length in lengths]
    ids = list(range(1, sum(pages) + 2))
    rng.shuffle(ids)
    # A page stride that is not block_size * dim: the first axis may be strided.
    store = torch.full((len(ids) + 1, block_size + 1, 1, dim), float("nan"), dtype=dtype)
    cache = store[:, :block_size]
    table = torch.full((len(lengths), max([*pages, 1]) + 1), POISON, dtype=torch.int32)
    for row, (length, count) in enumerate(zip(lengths, pages, strict=True)):
        for column in range(count):
            table[row, column] = ids.pop()
        for key in range(length):
            page = int(table[row, key // block_size])
            cache[page, key % block_size, 0] = torch.randn(dim, dtype=torch.float64).to(dtype)
    return cache, table


def random_indices(rng: random.Random, limits: Sequence[int], topk: int) -> Tensor:
    """Distinct compressed positions below each token's limit, best first, then poison."""
    rows = []
    for limit in limits:
        chosen = rng.sample(range(limit), min(limit, topk))
        rows.append(chosen + [rng.choice([-1, POISON])] * (topk - len(chosen)))
    return torch.tensor(rows, dtype=torch.int32).view(len(rows), 1, topk)


def batch_of(
    requests: Sequence[tuple[int, int]],
    *,
    ratio: int = 1,
    topk: int = 0,
    window: int = 6,
    right: int = 0,
    heads: int = 4,
    dim: int = 8,
    block_size: int = 4,
    cmp_block_size: int = 2,
    extra_tokens: int = 0,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> Batch:
    """Build a batch of (query length, KV length) requests with ``extra_tokens`` ownerless rows."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    lengths = [length for _, length in requests]
    starts = [0]
    for count, _ in requests:
        starts.append(starts[-1] + count)
    total = starts[-1] + extra_tokens
    kv, table = paged_cache(rng, lengths, block_size, dim, dtype)
    batch = Batch(
        q=torch.randn(total, heads, dim, dtype=torch.float64).to(dtype),
        kv=kv,
        block_table=table,
        query_start_loc=torch.tensor(starts, dtype=torch.int32),
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        sinks=torch.randn(heads, dtype=torch.float64).to(
            torch.float64 if dtype == torch.float64 else torch.float32
        ),
        scale=dim**-0.5,
        window_left=window - 1,
        window_right=right,
        cmp_ratio=ratio,
    )
    if ratio == 1:
        return batch
    cmp_kv, cmp_table = paged_cache(
        rng, [length // ratio for length in lengths], cmp_block_size, dim, dtype
    )
    limits = [
        max(length - count + i + 1, 0) // ratio for count, length in requests for i in range(count)
    ] + [0] * extra_tokens
    indices = random_indices(rng, limits, topk) if topk else None
    return batch.with_(cmp_kv=cmp_kv, cmp_block_table=cmp_table, cmp_indices=indices)


def keys_of_row(batch: Batch, request: int, token: int, position: int) -> list[Tensor]:
    """List the keys that the definition gives to one query token."""
    length = int(batch.seq_lens[request])
    size = batch.kv.shape[1]
    if batch.ori_indices is not None:
        keys = []
        for rank, slot in enumerate(batch.ori_indices[token, 0].tolist()):
            if slot < 0 or rank >= length:
                break
            keys.append(batch.kv[slot // size, slot % size, 0])
        return keys
    window = range(
        max(position - batch.window_left, 0), min(position + batch.window_right, length - 1) + 1
    )
    keys = [batch.kv[int(batch.block_table[request, j // size]), j % size, 0] for j in window]
    if batch.cmp_kv is None or batch.cmp_block_table is None or not keys:
        return keys
    limit = max(position + 1, 0) // batch.cmp_ratio
    entries = list(range(limit))
    if batch.cmp_indices is not None:
        entries = batch.cmp_indices[token, 0].tolist()[:limit]
    size = batch.cmp_kv.shape[1]
    for entry in entries:
        page = int(batch.cmp_block_table[request, entry // size])
        keys.append(batch.cmp_kv[page, entry % size, 0])
    return keys


def attend_one(query: Tensor, keys: list[Tensor], sink: float, scale: float) -> list[float]:
    """Softmax over a list of keys with a sink, in Python floats."""
    dim = query.numel()
    if not keys:
        return [0.0] * dim
    rows = [key.double().tolist() for key in keys]
    vector = query.double().tolist()
    logits = [scale * sum(a * b for a, b in zip(vector, row, strict=True)) for row in rows]
    peak = max([*logits, sink])
    weights = [math.exp(logit - peak) for logit in logits]
    total = sum(weights) + math.exp(sink - peak)
    return [
        sum(w * row[d] for w, row in zip(weights, rows, strict=True)) / total for d in range(dim)
    ]


def naive(batch: Batch) -> Tensor:
    """Loop over requests, tokens and heads; ownerless rows are NaN."""
    out = torch.full(batch.q.shape, float("nan"), dtype=torch.float64)
    starts = batch.query_start_loc.tolist()
    for request, (begin, end) in enumerate(itertools.pairwise(starts)):
        length = int(batch.seq_lens[request])
        for token in range(begin, end):
            position = length - (end - begin) + token - begin
            keys = keys_of_row(batch, request, token, position)
            for head in range(batch.q.shape[1]):
                row = attend_one(batch.q[token, head], keys, float(batch.sinks[head]), batch.scale)
                out[token, head] = torch.tensor(row, dtype=torch.float64)
    return out


def plan_of(
    ends: Sequence[tuple[int, int]],
    *,
    family: str = "a2",
    paired: bool = False,
    num_cores: int = 8,
    core0_start: tuple[int, int] | None = None,
) -> Tensor:
    """Encode range ends; every word that upstream leaves uninitialised is garbage."""
    size = 9 if family == "a5" else 8
    words = torch.full((1024,), POISON, dtype=torch.int32)
    copies = 2 if paired else 1
    begin = (0, 0) if core0_start is None else core0_start
    for core in range(num_cores // copies):
        enabled = core < len(ends)
        for copy in range(copies):
            at = (core * copies + copy) * size
            words[at] = int(enabled)
            if enabled:
                fields = [*begin, 0, *ends[core], 0, 0]
                words[at + 1 : at + 8] = torch.tensor(fields, dtype=torch.int32)
        if enabled:
            begin = ends[core]
    return words
