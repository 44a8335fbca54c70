"""Shapes of every kernel, from no rows to more than any block: one list for all ways of running.

A case is a call of a check with an implementation and a device. ``OFTEN`` is the fixed sample.
"""

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import shape_checks as check
import torch
from attention_cases import batch_of
from draft_oracle import DraftCase
from word_checks import run_local, run_rope, run_slots, run_staging, run_tails

from dsacp.core import TokenShard

Check = Callable[[str, str], None]
"""Takes an implementation and a device; fails where they differ from an oracle or a reference."""

ROWS = (0, 1, 2, 255, 256, 257, 300, 512, 513, 1025)
SIZES = (16, 48, 128)
SAS = {
    "a2": (0, 64, 0, 24, 127, 0, 1, 0),
    "c4": (0, 64, 0, 24, 127, 0, 4, 512),
    "c128": (0, 64, 0, 24, 127, 0, 128, 0),
    "a5-pairs": (0, 128, 1, 36, 127, 0, 4, 512),
    "right": (0, 64, 0, 24, 127, 3, 4, 512),
    "qli": (1, 64, 0, 24, 0, 0, 4, 0),
    "qli-a5": (1, 64, 1, 36, 0, 0, 4, 0),
    "one-core": (0, 64, 0, 1, 127, 0, 1, 0),
}


@dataclass(frozen=True)
class Shape:
    """One shape of one kernel.

    Attributes:
        name: kernel and sizes.
        check: runs it.
        often: whether it is in the fixed sample.
    """

    name: str
    check: Check
    often: bool = False


def staging() -> Iterator[Shape]:
    for rows, rejected in itertools.product(ROWS, (True, False)):
        for reqs in sorted({0, min(1, rows), rows // 2, rows}):
            run = partial(_staging, reqs, rows, rejected)
            often = reqs == rows // 2 and rejected == bool(rows % 2)
            yield Shape(f"stage/{rows}/{reqs}/{'rejected' if rejected else 'none'}", run, often)


def _staging(reqs: int, rows: int, rejected: bool, impl: str, device: str) -> None:
    run_staging(impl, reqs, rows, rejected, device)


def local() -> Iterator[Shape]:
    for rows, (tp, rank), causal in itertools.product(
        ROWS, ((1, 0), (3, 2), (8, 0), (8, 7)), (True, False)
    ):
        run = partial(_local, rows, tp, rank, causal)
        often = (tp, rank) == (8, 7) and causal == bool(rows % 2)
        yield Shape(f"local/{rows}/tp{tp}.{rank}/{'causal' if causal else 'block'}", run, often)


def _local(rows: int, tp: int, rank: int, causal: bool, impl: str, device: str) -> None:
    starts, counts, lens = batch(rows)
    del counts
    run_local(impl, starts, lens, TokenShard(starts[-1], tp, rank), causal, device)


def slots() -> Iterator[Shape]:
    for count, size, fmt in itertools.product(
        (1, 16, 127, 128, 129, 300, 1025), (1, *SIZES), ("flat", "block_offset")
    ):
        run = partial(_slots, count, size, fmt)
        often = count in (1, 300) and size in SIZES
        yield Shape(f"slots/{count}/{size}/{fmt}", run, often)
    for size, fmt in itertools.product(SIZES, ("flat", "block_offset")):
        run = partial(check.huge_positions, size, fmt)
        yield Shape(f"slots/huge/{size}/{fmt}", run, often=True)


def _slots(count: int, size: int, fmt: str, impl: str, device: str) -> None:
    run_slots(impl, size, fmt, device, count)


def rope() -> Iterator[Shape]:
    for count, dim in itertools.product((0, 1, 7, 8, 9, 300, 1025), (64, 6, 1)):
        often = count in (0, 9, 300)
        yield Shape(f"rope/{count}/{dim}", partial(_rope, count, dim), often)


def _rope(count: int, dim: int, impl: str, device: str) -> None:
    run_rope(impl, count, device, dim=dim)


def batch(rows: int, longest: int = 4, seed: int = 0) -> tuple[list[int], list[int], list[int]]:
    """Return starts, query lengths and lengths of requests, some without tokens."""
    rng = random.Random(rows + seed)
    counts = [rng.randint(0, longest) for _ in range(rows)]
    starts = [0, *itertools.accumulate(counts)]
    return starts, counts, [count and count + rng.randrange(500) for count in counts]


def drafted(
    rows: int,
    *,
    real: int | None = None,
    later: int | None = None,
    queries: int = 4,
    steps: int = 3,
    groups: int = 1,
    size: int = 16,
    **changes: object,
) -> DraftCase:
    """Return a batch of ``real`` requests padded to ``rows``, drafted ``steps`` times."""
    rng = random.Random(rows * 31 + steps)
    real = rows if real is None else real
    later = rows if later is None else later
    counts = [rng.randint(1, queries) for _ in range(real)]
    lens = [count + rng.randrange(700) for count in counts]
    starts = [0, *itertools.accumulate(counts)]
    tokens = max(starts[-1] + rows - real, 1)
    case = DraftCase(
        starts,
        lens,
        [rng.randrange(count) for count in counts],
        [rows] + [later] * (steps - 1),
        [tokens] + [later] * (steps - 1),
        num_banks=max(8, steps),
        block_sizes=(size,) * groups,
        table_widths=(760 // size + 2,) * groups,
        rope=((800, 64),),
    )
    return case.with_(**changes)


def draft() -> Iterator[Shape]:
    for rows in ROWS[1:]:
        sharded = {"tp": 8, "rank": 3}
        for repeat in (True, False):
            tail = f"{rows}/{'repeat' if repeat else 'dummy'}"
            often = rows in (1, 257, 1025) and repeat
            case = drafted(rows, repeat=repeat, **sharded)
            yield Shape(f"draft/{tail}", partial(_draft, case), often)
            half = drafted(rows, real=rows // 2, repeat=repeat, tp=3, rank=2)
            yield Shape(f"draft/half/{tail}", partial(_draft, half), rows in (256, 300) and repeat)
        one = drafted(rows, queries=1, steps=2, repeat=True)
        yield Shape(f"draft/one-token/{rows}", partial(_draft, one), rows in (512, 513))
    for steps in range(1, 8):
        case = drafted(5, steps=steps, queries=steps + 1, tp=4, rank=1, repeat=steps % 2 == 0)
        yield Shape(f"draft/K{steps}", partial(_draft, case), steps == 7)
    for groups, size in itertools.product(range(1, 6), SIZES):
        case = drafted(6, later=8, groups=groups, size=size, repeat=groups % 2 == 0)
        often = (groups, size) in ((2, 48), (5, 128))
        yield Shape(f"draft/groups{groups}/{size}", partial(_draft, case), often)
    for saturate, causal, repeat, first in itertools.product(*[(True, False)] * 3, (0, 2)):
        changes = {"saturate": saturate, "causal": causal, "repeat": repeat, "first_step": first}
        case = drafted(6, real=4, steps=2, max_model_len=300, **changes)
        name = "/".join(f"{key}={int(value)}" for key, value in changes.items())
        yield Shape(f"draft/{name}", partial(_draft, case), saturate and not causal and first == 2)
    for repeat in (True, False):
        none = drafted(4, real=0, repeat=repeat)
        yield Shape(f"draft/no-requests/{int(repeat)}", partial(_draft, none), often=repeat)
    lane = drafted(1, steps=1, queries=1, rope=((800, 1),))
    yield Shape("draft/one-lane", partial(_draft, lane), often=True)


def _draft(case: DraftCase, impl: str, device: str) -> None:
    from draft_oracle import run_case

    run_case(case, impl, device)


def tails() -> Iterator[Shape]:
    for rows in (1, 255, 256, 257, 300, 1025):
        run = partial(_tails, [(0, rows), (rows // 2, rows)], [(0, rows), (rows // 3, rows)])
        yield Shape(f"tails/{rows}", run, rows in (1, 257))
    yield Shape("tails/none", partial(_tails, [(3, 3)], [(4, 4)]), often=True)


def _tails(
    rows: list[tuple[int, int]], tokens: list[tuple[int, int]], impl: str, device: str
) -> None:
    capacity = 2 + max(end for _, end in [*rows, *tokens])
    lasts = [(9, 4)] * len(rows)
    run_tails(impl, device, rows=rows, tokens=tokens, lasts=lasts, capacity=capacity)


def compressor() -> Iterator[Shape]:
    for reqs, ratio, size in itertools.product((0, 1, 6, 33, 300), (4, 128), SIZES):
        flat = (reqs + size) % 2 == 0
        run = partial(check.compressor, reqs, ratio, size, flat)
        often = (reqs, ratio, size) in ((0, 4, 16), (6, 128, 48), (300, 4, 128))
        yield Shape(f"compressor/{reqs}/{ratio}/{size}", run, often)
    for reqs in (513, 1025):
        yield Shape(f"compressor/{reqs}", partial(check.compressor, reqs, 4, 128, True), reqs > 999)


def covered() -> Iterator[Shape]:
    for reqs, tokens, (family, heads), rows in itertools.product(
        (1, 5, 300, 513, 1025), (1, 33, 1025), (("a2", 64), ("a5", 64), ("a5", 128)), (1, 4)
    ):
        run = partial(check.covered, reqs, tokens, family, heads, rows)
        often = (tokens, heads, rows) == (33, 128, 1) and reqs in (5, 1025)
        yield Shape(f"covered/{reqs}/{tokens}/{family}-{heads}/{rows}", run, often)


def dspark() -> Iterator[Shape]:
    for reqs, size in itertools.product((1, 2, 5, 300, 1025), SIZES):
        run = partial(check.dspark, reqs, size)
        yield Shape(f"dspark/{reqs}/{size}", run, (reqs, size) in ((5, 48), (300, 128)))


def plan() -> Iterator[Shape]:
    for (name, spec), policy, rows, longest in itertools.product(SAS.items(), (0, 1), ROWS, (1, 4)):
        run = partial(check.plan, rows, spec, policy, longest)
        # one compiled kernel serves all of these: it reads what it plans from the device
        often = longest == 4 and (rows, policy) in ((0, 0), (257, 1), (1025, 0))
        yield Shape(f"plan/{name}/{policy}/{rows}/{longest}", run, often)
    for name, spec in SAS.items():
        yield Shape(f"plan/{name}/prefill", partial(check.plan, 3, spec, 0, 6000), name == "c4")


def attention() -> Iterator[Shape]:
    float32 = {"dim": 64, "dtype": torch.float32}
    for size in SIZES:
        pages = {"block_size": size, "cmp_block_size": size, "window": 128, **float32}
        for name, requests, options in (
            ("window", [(1, 1), (2, 300), (0, 4), (3, 130)], {"heads": 8}),
            ("topk", [(4, 40), (1, 300), (2, 0)], {"ratio": 4, "topk": 20, "heads": 20}),
            ("c128", [(1, 127), (2, 129), (1, 400)], {"ratio": 128, "heads": 16}),
        ):
            made = partial(batch_of, requests, **{**pages, **options})
            often = (name, size) in (("window", 16), ("topk", 48), ("c128", 128))
            yield Shape(f"attention/{name}/{size}", partial(check.attention, made), often)
    wide = {"ratio": 4, "topk": 70, "window": 128, "dim": 512, "heads": 64}
    half = partial(batch_of, [(2, 300)], dtype=torch.bfloat16, block_size=128, **wide)
    yield Shape("attention/bf16-512", partial(check.attention, half), often=False)
    for name, requests, options in (
        ("one", [(1, 1)], {"heads": 1}),
        ("no-key", [(1, 0)], {"heads": 1}),
        ("33-requests", [(1, 9)] * 33, {}),
        ("1025-requests", [(1, 9)] * 1025, {"heads": 1}),
        ("extra", [(2, 9)], {"extra_tokens": 5}),
    ):
        made = partial(batch_of, requests, **{**float32, "dim": 16, **options})
        yield Shape(f"attention/{name}", partial(check.attention, made), name in ("one", "no-key"))
    for kind in ("page", "near-page", "index", "listed"):
        run = partial(check.bad_attention, kind)
        yield Shape(f"attention/bad-{kind}", run, often=True)


SHAPES = {
    shape.name: shape
    for family in (
        *(staging, local, slots, rope, draft, tails),
        *(compressor, covered, dspark, plan, attention),
    )
    for shape in family()
}
OFTEN = [name for name, shape in SHAPES.items() if shape.often]
"""The fixed sample: every kernel, every limit that was once wrong, and few compilations."""
