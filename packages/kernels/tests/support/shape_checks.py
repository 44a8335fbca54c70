"""Both implementations of a kernel on equal poison, compared word by word."""

import itertools
import random
from collections.abc import Callable

import torch
from attention_cases import Batch, batch_of
from torch import Tensor

from dsacp.kernels import (
    PLAN_WORDS,
    CompressorRows,
    compressor_row_count,
    compressor_rows,
    covered_rows,
    dspark_indices,
    plan_table,
    sas_plan,
    slot_mapping,
    sparse_attention,
)

POISON = 0x7FFFFFFF


def same(name: str, expected: Tensor, found: Tensor) -> None:
    """Compare bits, so that a NaN equals itself."""
    found = found.cpu().contiguous()
    if torch.equal(expected.contiguous().view(torch.uint8), found.view(torch.uint8)):
        return
    where = (expected != found).nonzero()[:4].tolist()
    pairs = [(expected[tuple(at)].item(), found[tuple(at)].item()) for at in where]
    raise AssertionError(f"{name} differs at {where}: (expected, found) {pairs}")


def words(values: list[int], device: str = "cpu") -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def starts_of(rng: random.Random, reqs: int, longest: int) -> list[int]:
    return [0, *itertools.accumulate(rng.randint(0, longest) for _ in range(reqs))]


def huge_positions(size: int, fmt: str, impl: str, device: str) -> None:
    """Positions and owners far past the table, and before it."""
    table = words(list(range(1, 31))).view(5, 6)
    positions = words([0, POISON, 6 * size - 1, 6 * size, -1, 3, 240 * size, 5])
    owners = words([0, 4, 4, 4, 2, -1, 1, 8])
    outs = []
    for name, where in (("reference", "cpu"), (impl, device)):
        shape = (8,) if fmt == "flat" else (8, 2)
        out = torch.full(shape, POISON, dtype=torch.int32, device=where)
        moved = (item.to(where) for item in (positions, owners, table))
        slot_mapping(*moved, size, out, fmt, name)
        outs.append(out)
    same("slots", *outs)


def compressor(reqs: int, ratio: int, size: int, flat: bool, impl: str, device: str) -> None:
    rng = random.Random(reqs * size)
    starts = starts_of(rng, reqs, 8)
    first = words([rng.randint(0, 40) for _ in range(reqs)])
    columns = -(-60 // (ratio * size)) + 1
    table = words([rng.randint(-1, 60) for _ in range(max(reqs, 1) * columns)])
    cos = torch.rand(60, 64)
    rows = compressor_row_count(starts[-1], reqs, ratio)
    outs = []
    for name, where in (("reference", "cpu"), (impl, device)):
        shapes = [(rows,) if flat else (rows, 2), (rows,), (rows,)]
        made = [torch.full(shape, POISON, dtype=torch.int32, device=where) for shape in shapes]
        made += [torch.full((rows, 64), float("nan"), device=where) for _ in "cs"]
        out = CompressorRows(*made)
        moved = (words(starts), first, table.view(-1, columns), cos, -cos)
        inputs = (item.to(where) for item in moved)
        compressor_rows(*inputs, ratio=ratio, block_size=size, out=out, impl=name)
        outs.append(out)
    for name in ("slot_mapping", "positions", "requests", "cos", "sin"):
        same(name, *(getattr(out, name) for out in outs))


def covered(
    reqs: int, tokens: int, family: str, heads: int, rows: int, impl: str, device: str
) -> None:
    rng = random.Random(reqs)
    starts = words(starts_of(rng, reqs, 4))
    plan = words([rng.randrange(4) for _ in range(PLAN_WORDS)])
    cores = 36 if heads == 128 else 24
    outs = []
    for name, where in (("reference", "cpu"), (impl, device)):
        out = torch.ones(tokens, dtype=torch.bool, device=where)
        covered_rows(
            plan.to(where), starts.to(where), family, heads, cores, rows, out=out, impl=name
        )
        outs.append(out)
    same("covered", *outs)


def dspark(reqs: int, size: int, impl: str, device: str) -> None:
    rng = random.Random(reqs * size)
    drafts, columns = 3, 600 // size
    starts = words([request * drafts for request in range(reqs + 1)])
    lens = words([rng.choice((0, drafts + rng.randrange(500))) for _ in range(reqs)])
    table = words([rng.randint(-1, 900) for _ in range(reqs * columns)]).view(reqs, columns)
    numbers = {"window": 128, "num_draft_tokens": drafts, "block_size": size}
    outs = [
        dspark_indices(
            *(item.to(where) for item in (starts, lens, table)),
            num_tokens=drafts * reqs + 2,
            impl=name,
            **numbers,
        )
        for name, where in (("reference", "cpu"), (impl, device))
    ]
    same("indices", *outs)


def plan(
    rows: int, spec: tuple[int, ...], policy: int, longest: int, impl: str, device: str
) -> None:
    rng = random.Random(rows)
    starts = starts_of(rng, rows, longest)
    lens = [b - a and b - a + rng.randrange(3000) for a, b in itertools.pairwise(starts)]
    row = [0, 0, 0, rows, *spec, policy, -1, 0, 0]
    outs = []
    for name, where in (("reference", "cpu"), (impl, device)):
        out = torch.full((PLAN_WORDS,), POISON, dtype=torch.int32, device=where)
        inputs = words(starts, where), words(lens, where), out
        sas_plan(*inputs, plan_table([row], where), impl=name)
        outs.append(out)
    same("plan", *outs)


def attention(made: Callable[[], Batch], impl: str, device: str) -> None:
    compare_attention(made(), impl, device)


def compare_attention(batch: Batch, impl: str, device: str) -> None:
    outs = []
    for name, where in (("reference", "cpu"), (impl, device)):
        args = [item if item is None else item.to(where) for item in batch.args()]
        options = {
            key: value.to(where) if isinstance(value, Tensor) else value
            for key, value in batch.options().items()
        }
        out = torch.full_like(batch.q, 777.0, device=where)
        sparse_attention(*args, **options, out=out, impl=name)
        outs.append(out.cpu())
    tolerance = 1e-5 if batch.q.dtype is torch.float32 else 2e-2
    torch.testing.assert_close(outs[1], outs[0], rtol=0, atol=tolerance)


def bad_attention(kind: str, impl: str, device: str) -> None:
    """A page, an index or a listed slot past the cache is an absent key."""
    sizes = {"ratio": 4, "topk": 3, "block_size": 4, "cmp_block_size": 4}
    batch = batch_of([(2, 30), (1, 9)], dim=16, heads=4, dtype=torch.float32, **sizes)
    if kind in ("page", "near-page"):
        table = batch.block_table.clone()
        table[0, 6] = POISON if kind == "page" else batch.kv.shape[0] + 9
        batch = batch.with_(block_table=table)
    elif kind == "index":
        chosen = batch.cmp_indices.clone()
        chosen[0, 0, 1] = POISON
        batch = batch.with_(cmp_indices=chosen)
    else:
        absent = {"cmp_kv": None, "cmp_block_table": None, "cmp_indices": None, "cmp_ratio": 1}
        listed = words([0, POISON, 1] * 3).view(3, 1, 3)
        batch = batch.with_(ori_indices=listed, kv=torch.randn_like(batch.kv), **absent)
    compare_attention(batch, impl, device)
