"""A planner of plain loops from upstream U5-U7, U13: it shares no code with ours."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from dsacp.sas_metadata import QliSpec, SasPolicy, SasSpec, plan_qli, plan_sas

Spec = SasSpec | QliSpec
POISON = 0x7FFFFFFF
GUARD = 0x5AFEC0DE


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def sas_parts(spec: SasSpec, i: int, q: int, S: int) -> tuple[int, int]:  # noqa: N803
    if q == 0 or S == 0:
        return 0, 0
    low, high = i + S - q - spec.window_left, i + S - q + spec.window_right
    window = 0
    if low >= S or high < 0 or high < low:
        high = 0
    else:
        low, high = max(low, 0), min(high, S - 1)
        window = high - low + 1
    compressed = (high + 1) // spec.cmp_ratio if spec.cmp_ratio > 1 else 0
    return window, min(compressed, spec.cmp_topk) if spec.cmp_topk else compressed


def split_blocks(tokens: int, size: int) -> list[int]:
    return [min(size, tokens - at) for at in range(0, tokens, size)]


def row_blocks(spec: Spec, i: int, q: int, S: int) -> list[int]:  # noqa: N803
    """Cost of every KV block of a row."""
    a5 = spec.device_family == "a5"
    if isinstance(spec, SasSpec):
        size = 128 if a5 else 512
        return [
            6 * cdiv(spec.num_heads, 16) + 10 * cdiv(s, 64)
            for part in sas_parts(spec, i, q, S)
            for s in split_blocks(part, size)
        ]
    if S // spec.cmp_ratio == 0 or q == 0:
        return []
    tokens = min(4, q - 4 * i)
    last = min(max(4 * i + tokens - 1 + S - q, 0), S - 1)
    blocks = split_blocks((last + 1) // spec.cmp_ratio, 128 if a5 else 2048)
    if a5:
        return [6 * cdiv(tokens * 64, 16) + 10 * cdiv(s, 64) for s in blocks]
    return [tokens * (((1536 if s <= 1024 else 2560) + s) // 2) for s in blocks]


@dataclass
class Batch:
    """Rows of a batch, all written out."""

    spec: Spec
    starts: list[int]
    lens: list[int]

    def __post_init__(self) -> None:
        per_row = 4 if isinstance(self.spec, QliSpec) else 1
        self.rows: list[list[list[int]]] = []
        for (a, b), S in zip(pairwise(self.starts), self.lens, strict=True):  # noqa: N806
            rows = range(cdiv(b - a, per_row))
            self.rows.append([row_blocks(self.spec, i, b - a, S) for i in rows])
        paired = isinstance(self.spec, SasSpec) and self.spec.device_family == "a5"
        self.paired = paired and self.spec.num_heads == 128
        self.cores = self.spec.num_cores // (2 if self.paired else 1)

    def cost(self, request: int, row: int) -> int:
        return sum(self.rows[request][row])

    def flat(self) -> list[int]:
        return [sum(blocks) for rows in self.rows for blocks in rows]

    def upstream(self) -> list[tuple[int, int]]:
        count = len(self.lens)
        flat = self.flat()
        remaining, largest = sum(flat), max(flat, default=0)
        if remaining == 0:
            return [(count, 0)]
        left = [sum(sum(blocks) for blocks in rows) for rows in self.rows]
        tail = [next((b[-1] for b in reversed(rows) if b), 0) for rows in self.rows]
        ends, b, r = [], 0, 0
        for k in range(self.cores):
            if b == count or remaining <= 0:
                break
            limit, used = max(remaining // (self.cores - k), largest), 0
            while b < count and (left[b] == 0 or limit + tail[b] // 2 >= used + left[b]):
                used, b, r = used + left[b], b + 1, 0
            if b < count:
                while True:
                    last = self.rows[b][r][-1] if self.rows[b][r] else 0
                    if limit + last // 2 < used + self.cost(b, r):
                        break
                    used += self.cost(b, r)
                    left[b] -= self.cost(b, r)
                    r += 1
                    while r < len(self.rows[b]) and self.cost(b, r) == 0:
                        r += 1
            ends.append((b, r))
            remaining -= used
        return ends

    def least_maximum(self) -> int:
        """Smallest bound under which the rows fit the cores, by trying bounds on plain lists."""

        def fits(bound: int) -> bool:
            groups, used = 1, 0
            for cost in self.flat():
                if used + cost > bound:
                    groups, used = groups + 1, 0
                used += cost
            return groups <= self.cores

        low, high = max(self.flat(), default=0), max(sum(self.flat()), 1)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if fits(middle) else (middle + 1, high)
        return low

    def loads(self, ends: list[tuple[int, int]], blocks: bool = False) -> list[int]:
        """Cost, or KV blocks, of every range."""
        values = [(r, i) for r, rows in enumerate(self.rows) for i in range(len(rows))]
        loads = []
        for start, end in pairwise([(0, 0), *ends]):
            inside = [self.rows[r][i] for r, i in values if start <= (r, i) < end]
            loads.append(sum(len(row) if blocks else sum(row) for row in inside))
        return loads

    def words(self) -> list[int]:
        """Upstream's 1024 words, 0 where it writes nothing."""
        words, ends = [0] * 1024, self.upstream()
        a5_sas = isinstance(self.spec, SasSpec) and self.spec.device_family == "a5"
        size, copies = 9 if a5_sas else 8, 2 if self.paired else 1
        for core, (start, end) in enumerate(pairwise([(0, 0), *ends])):
            for copy in range(copies):
                at = size * (copies * core + copy)
                words[at : at + 7] = [1, *start, 0, *end, 0]
        for core in range(self.spec.num_cores if self.paired else 0):
            words[9 * core + 8] = max(self.loads(ends, blocks=True))
        return words


def int32(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def plan(batch: Batch, policy: SasPolicy = "upstream") -> Tensor:
    """Plan into poisoned words between guards, and check the guards."""
    around = torch.full((1024 + 8,), GUARD, dtype=torch.int32)
    out = around[4:-4].fill_(POISON)
    args: dict[str, Any] = {"policy": policy, "out": out}
    starts, lens = int32(batch.starts), int32(batch.lens)
    if isinstance(batch.spec, QliSpec):
        result = plan_qli(batch.spec, starts, lens, **args)
    else:
        result = plan_sas(batch.spec, starts, lens, **args)
    assert result is out
    assert around[:4].tolist() + around[-4:].tolist() == [GUARD] * 8
    assert starts.tolist() == batch.starts
    assert lens.tolist() == batch.lens
    return result


def random_spec(rng: random.Random) -> Spec:
    family = rng.choice(("a2", "a5"))
    cores = rng.choice((1, 2, 3, 4, 8, 24, 25, 36))
    if rng.random() < 0.25:
        ratios = (1, 4, 128) if family == "a5" else (1, 2, 4, 8, 128)
        return QliSpec(64, family, cores, cmp_ratio=rng.choice(ratios))
    heads = rng.choice((64, 128) if family == "a5" else (1, 8, 16, 64, 100))
    return SasSpec(
        heads,
        family,
        cores + cores % 2 if family == "a5" and heads == 128 else cores,
        window_left=rng.choice((0, 3, 127, 130)),
        window_right=rng.choice((0, 0, 0, 1, 5, 200)),
        cmp_ratio=rng.choice((1, 4, 128)),
        cmp_topk=rng.choice((0, 0, 5, 130, 512, 1024)),
    )


def random_batch(rng: random.Random) -> Batch:
    """Few or many requests; empty ones, ones without KV, and ones with fewer keys than queries."""
    longest = rng.choice((1, 4, 9, 70))
    starts, lens = [rng.choice((0, 0, 5))], []
    for _ in range(rng.randint(1, rng.choice((2, 6, 40 if longest < 10 else 6)))):
        query_len = rng.choice((0, 1, longest, rng.randint(0, longest)))
        starts.append(starts[-1] + query_len)
        near = max(query_len + rng.randint(-3, 3), 0)
        lens.append(rng.choice((0, near, rng.randint(0, 700), rng.randint(0, 70000))))
    return Batch(random_spec(rng), starts, lens)


@pytest.fixture
def batches() -> Callable[[int, int], list[Batch]]:
    def make(seed: int, count: int) -> list[Batch]:
        rng = random.Random(seed)
        return [random_batch(rng) for _ in range(count)]

    return make


@pytest.fixture
def run_plan() -> Callable[..., Tensor]:
    return plan


@pytest.fixture
def make_batch() -> type[Batch]:
    return Batch
