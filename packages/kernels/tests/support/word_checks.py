"""Runs of the smaller kernels on poisoned storages, each word compared with a loop oracle."""

import itertools
import random
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from dsacp.core import TokenShard
from dsacp.kernels import (
    DRAFT_FIELDS,
    LocalMetadata,
    clear_tails,
    local_metadata,
    rope_gather,
    slot_mapping,
    stage_inputs,
)

POISON = 0x7FFFFFFF
CAPACITY = 24
TAIL = {"positions": 0, "slot_mapping": -1, "seq_lens": 0, "local_seq_lens": 0, "start_pos": 0}


def words(values: Sequence[int], device: str) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def run_tails(
    impl: str,
    device: str = "cpu",
    groups: int = 1,
    configs: int = 1,
    first_step: int = 0,
    rows: Sequence[tuple[int, int]] = ((3, 8), (4, 16)),
    tokens: Sequence[tuple[int, int]] = ((12, 20), (4, 16)),
    lasts: Sequence[tuple[int, int]] = ((12, 4), (4, 1)),
    absent: frozenset[tuple[int, int]] | set[tuple[int, int]] = frozenset(),
    widths: Sequence[int] | None = None,
    capacity: int = CAPACITY,
) -> None:
    """Clean fields of ``capacity`` entries that hold their offsets; tables are 6 wide if unsaid."""
    widths = [6] * configs if widths is None else widths
    banks = first_step + len(rows)
    layout = torch.full((groups, banks, len(DRAFT_FIELDS)), -1, dtype=torch.int32)
    expected = list(range(groups * banks * len(DRAFT_FIELDS) * (capacity + 2)))
    present = set(itertools.product(range(groups), range(len(DRAFT_FIELDS)))) - absent
    for base, ((group, index), step) in enumerate(itertools.product(present, range(banks))):
        offset = 1 + base * (capacity + 2)
        layout[group, step, index] = offset
        field, call_step = DRAFT_FIELDS[index], step - first_step
        if call_step >= 0:
            begin, end = (tokens if field in ("positions", "slot_mapping") else rows)[call_step]
            shift = field.endswith("query_start_loc")
            last = lasts[call_step][field.startswith("local")]
            for entry in range(begin + shift, end + shift):
                expected[offset + entry] = last if shift else TAIL[field]
    rope_layout, bank = torch.zeros((configs, banks, 2), dtype=torch.int32), []
    for config, step, index in itertools.product(range(configs), range(banks), (0, 1)):
        rope_layout[config, step, index] = len(bank)
        part = [7.5] * (capacity * widths[config])
        if step >= first_step:
            begin, end = (widths[config] * token for token in tokens[step - first_step])
            part[begin:end] = [1.0 - index] * (end - begin)
        bank += part
    arena = torch.arange(len(expected), dtype=torch.int32, device=device)
    rope_bank = torch.full((len(bank),), 7.5, device=device)
    clear_tails(
        arena,
        layout.to(device),
        rope_bank,
        rope_layout.to(device),
        widths,
        first_step,
        *zip(*rows, strict=True),
        *zip(*tokens, strict=True),
        *zip(*lasts, strict=True),
        impl,
    )
    assert arena.tolist() == expected
    assert rope_bank.tolist() == bank


def run_staging(
    impl: str,
    reqs: int,
    rows: int,
    with_rejected: bool,
    device: str = "cpu",
    drafts: Literal["absent", "all", "some"] = "absent",
    num_tokens: int | None = None,
) -> None:
    """Stage ``reqs`` requests of 3 tokens; ``drafts`` says which mask the block ends with."""
    starts = [index * 3 for index in range(reqs + 1)]
    lens, rejected = [50 + row for row in range(reqs)], [row % 4 for row in range(reqs)]
    mask = [row % 3 for row in range(reqs)]
    regions = 3 if drafts == "absent" else 4
    out = words([POISON] * (regions * rows + 5), device)
    options: dict[str, Any] = {"with_drafts": drafts == "all"}
    if drafts == "some":
        options["drafts"] = words([*mask, 977], device)
    if num_tokens is not None:
        options["num_tokens"] = num_tokens
        starts = [min(start, num_tokens) for start in starts]
    stage_inputs(
        words([*range(0, 3 * reqs + 1, 3), 977], device),
        words([*lens, 977], device),
        words([*rejected, 977], device) if with_rejected else None,
        reqs,
        out,
        rows,
        impl,
        **options,
    )
    pad = rows - reqs
    expected = [reqs, *starts, *starts[-1:] * pad, *lens, *[0] * pad]
    expected += [*rejected, *[0] * pad] if with_rejected else [0] * rows
    if drafts != "absent":
        expected += (mask if drafts == "some" else [1] * reqs) + [1] * pad
    assert out.tolist() == expected + [POISON] * 3


def run_slots(impl: str, block_size: int, fmt: str, device: str = "cpu", count: int = 97) -> None:
    rng = random.Random(block_size)
    rows, width = 5, 6
    ids = [[rng.choice([-1, rng.randrange(2000)]) for _ in range(width)] for _ in range(rows)]
    positions = [rng.randrange(-2, block_size * (width + 1)) for _ in range(count)]
    owners = [rng.randrange(-1, rows) for _ in range(count)]
    expected = []
    for owner, position in zip(owners, positions, strict=True):
        known = owner >= 0 <= position and position // block_size < width
        block = ids[owner][position // block_size] if known else -1
        slot = (block, position % block_size) if block >= 0 else (-1, block_size - 1)
        expected += [slot[0] * block_size + slot[1]] if fmt == "flat" else slot
    wide = words([row + [POISON] * 3 for row in ids], device)
    home = words([POISON] * (len(expected) + 2), device)
    out = home[1:-1] if fmt == "flat" else home[1:-1].view(count, 2)
    slot_mapping(
        words(positions, device), words(owners, device), wide[:, :width], block_size, out, fmt, impl
    )
    assert home.tolist() == [POISON, *expected, POISON]


def run_rope(impl: str, count: int, device: str = "cpu", length: int = 70, dim: int = 6) -> None:
    cos, sin = torch.rand(length, dim), torch.rand(length, dim)
    positions = [(index * 29) % length for index in range(count)]
    homes = [torch.full(((count + 2) * dim,), float("nan"), device=device) for _ in "cs"]
    outs = [home[dim:-dim].view(count, dim) for home in homes]
    rope_gather(words(positions, device), cos.to(device), sin.to(device), *outs, impl)
    for home, out, table in zip(homes, outs, (cos, sin), strict=True):
        assert torch.equal(out.cpu(), table[positions])
        assert home[:dim].isnan().all()
        assert home[-dim:].isnan().all()


def local_oracle(
    starts: Sequence[int], lens: Sequence[int], shard: TokenShard, causal: bool
) -> tuple[list[int], list[int], list[int]]:
    """Count tokens one by one: no clamps, no telescoping."""
    local, visible, first = [0], [], []
    for begin, end, length in zip(starts[:-1], starts[1:], lens, strict=True):
        mine = [token for token in range(begin, end) if shard.start <= token < shard.end]
        local.append(local[-1] + len(mine))
        unseen = end - 1 - mine[-1] if mine and causal else 0
        visible.append(max(length - unseen, 0) if mine and length else 0)
        first.append(max(length - (end - begin), 0))
    return local, visible, first


def run_local(
    impl: str,
    starts: Sequence[int],
    lens: Sequence[int],
    shard: TokenShard,
    causal: bool = True,
    device: str = "cpu",
) -> tuple[list[int], list[int], list[int]]:
    """Compare with the oracle and return (local starts, local lengths, start positions)."""
    sizes = (len(starts), len(lens), len(lens))
    homes = [words([POISON] * (size + 2), device) for size in sizes]
    out = LocalMetadata(*(home[1:-1] for home in homes))
    inputs = words(starts, device), words(lens, device)
    assert local_metadata(*inputs, shard, causal=causal, out=out, impl=impl) is out
    assert all(home[0] == home[-1] == POISON for home in homes)
    got = (out.query_start_loc.tolist(), out.seq_lens.tolist(), out.start_pos.tolist())
    assert got == local_oracle(starts, lens, shard, causal)
    return got
