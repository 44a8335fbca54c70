"""Batches for ``draft_steps``, and an oracle of plain Python loops that shares no code with it.

A case is run on poisoned storages and every word of them is compared, so that a word outside the
promised ranges that changed, or one inside that did not, fails the test.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dsacp.kernels import DRAFT_FIELDS, draft_steps

POISON = 0x7FFFFFFF
GAP = 3


@dataclass(frozen=True)
class DraftCase:
    """One call: real requests first, all lists as long as the batch has requests.

    ``told`` is what num_reqs says where it is not the number of requests. A ``rope_gap`` of 4
    words puts RoPE rows of 8 on 16 bytes.
    """

    starts: list[int]
    lens: list[int]
    rejected: list[int]
    rows: list[int]
    tokens: list[int]
    tp: int = 1
    rank: int = 0
    first_step: int = 0
    num_banks: int = 4
    block_sizes: tuple[int, ...] = (16,)
    table_widths: tuple[int, ...] = (64,)
    table_rows: int | None = None
    rope: tuple[tuple[int, int], ...] = ((512, 8),)
    pad_query_len: int = 4
    max_model_len: int = 4096
    saturate: bool = False
    repeat: bool = False
    causal: bool = True
    absent: frozenset[tuple[int, int, str]] = frozenset()
    told: int | None = None
    drafts: list[int] | None = None
    rope_gap: int = GAP
    start_counts: list[int] | None = None

    @property
    def num_reqs(self) -> int:
        return len(self.lens)

    def with_(self, **changes: Any) -> "DraftCase":
        return replace(self, **changes)


def padded(case: DraftCase, step: int) -> int:
    return -(-case.tokens[step] // case.tp) * case.tp


def make_tables(case: DraftCase) -> list[Tensor]:
    """Tables of distinct ids a group, inside wider storages, some blocks not allocated."""
    tables = []
    rows = max(case.num_reqs, 1) if case.table_rows is None else case.table_rows
    for group, width in enumerate(case.table_widths):
        wide = torch.full((rows, width + 2), POISON, dtype=torch.int32)
        ids = torch.arange(rows * width, dtype=torch.int32).view(rows, width)
        wide[:, :width] = ids + 1 + 1000 * group
        wide[:, 7:width:11] = -1
        tables.append(wide[:, :width])
    return tables


def given_start(case: DraftCase, row: int) -> int:
    """A request's start, or the last one's end: never outside the first step's tokens."""
    return min(max(case.starts[row], 0), case.tokens[0])


def oracle_rejected(case: DraftCase, row: int) -> int:
    """Nothing below none of the row's query tokens can be rejected, and nothing above all."""
    return min(max(case.rejected[row], 0), given_start(case, row + 1) - given_start(case, row))


def takes_part(case: DraftCase, row: int) -> bool:
    """Whether a request drafts: it has a query token, and its mask is not 0."""
    chosen = case.drafts is None or case.drafts[row] != 0
    return chosen and given_start(case, row) < given_start(case, row + 1)


def oracle_length(case: DraftCase, row: int, step: int) -> tuple[int, bool]:
    """A row's length, and whether its tokens have slots."""
    if row >= case.num_reqs or case.lens[row] == 0:
        return 0, True
    alone = case.causal and case.first_step > 0
    if (step > 0 or alone) and not takes_part(case, row):
        return 0, True
    length = case.lens[row] - (oracle_rejected(case, row) - step if step else 0)
    over = (step > 0 or alone) and length > case.max_model_len
    if case.saturate:
        return (case.max_model_len if over else length), True
    was_over = alone and case.lens[row] > case.max_model_len
    own = case.lens[row] - (oracle_rejected(case, row) if step else 0)
    short = (step > 0 or alone) and own <= (case.first_step if case.causal else 0)
    return (1, False) if over or was_over or short else (length, True)


def oracle_rows(case: DraftCase, step: int) -> tuple[list[int], list[int], list[tuple[int, bool]]]:
    """Starts, lengths, and for every request its first position and whether it has a slot."""
    count, real = case.rows[step], case.num_reqs
    starts, lens, first = [], [], []
    for row in range(count + 1):
        if row <= real:
            starts.append(given_start(case, row) if step == 0 else row)
        elif case.repeat:
            starts.append(given_start(case, real) if step == 0 else real)
        elif step:
            starts.append(row)
        elif row == count:
            starts.append(case.tokens[0])
        else:
            grown = given_start(case, real) + (row - real) * case.pad_query_len
            starts.append(min(grown, case.tokens[0]))
    for row in range(count):
        length, cached = oracle_length(case, row, step)
        lens.append(length)
        first.append((max(length - (starts[row + 1] - starts[row]), 0), cached))
    return starts, lens, first


def oracle_step(case: DraftCase, step: int, tables: list[Tensor]) -> list[dict[str, list[int]]]:
    """Expected fields of one computed step, a dict a group."""
    starts, lens, first = oracle_rows(case, step)
    total = padded(case, step)
    low = case.rank * (total // case.tp)
    high = low + total // case.tp
    local, visible = [0], []
    positions, owners = [0] * total, [-1] * total
    for row, length in enumerate(lens):
        begin, end = starts[row], starts[row + 1]
        inside = [token for token in range(begin, end) if low <= token < high]
        local.append(local[-1] + len(inside))
        later = end - 1 - inside[-1] if inside and case.causal else 0
        visible.append(max(length - later, 0) if inside and length else 0)
        for token in range(begin, end) if length else ():
            positions[token] = first[row][0] + (token - begin if first[row][1] else 0)
            beyond = not case.causal and positions[token] >= case.max_model_len
            owners[token] = row if first[row][1] and not beyond else -1
    repeats = 0 if case.start_counts is None else case.start_counts[step] - case.rows[step]
    starts = starts + [starts[-1]] * repeats
    local += [local[-1]] * repeats
    groups = []
    for table, size in zip(tables, case.block_sizes, strict=True):
        slots = [-1] * total
        for token, (row, position) in enumerate(zip(owners, positions, strict=True)):
            if row >= 0 and position // size < table.shape[1]:
                block = int(table[row, position // size])
                slots[token] = block * size + position % size if block >= 0 else -1
        values = (starts, lens, local, visible, [f for f, _ in first], positions, slots)
        groups.append(dict(zip(DRAFT_FIELDS, values, strict=True)))
    return groups


def rope_tables(case: DraftCase) -> tuple[list[Tensor], list[Tensor]]:
    cos = [torch.rand(shape) + 2 + index for index, shape in enumerate(case.rope)]
    sin = [torch.rand(shape) - 9 - index for index, shape in enumerate(case.rope)]
    for table, value in [*((c, 1.0) for c in cos), *((s, 0.0) for s in sin)]:
        table[0] = value
    return cos, sin


def place(case: DraftCase, tables: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Layout and expected arena: every field has its own words with poison around."""
    groups = len(tables)
    layout = torch.full((groups, case.num_banks, len(DRAFT_FIELDS)), -1, dtype=torch.int32)
    words = [POISON] * GAP
    for step in range(len(case.rows)):
        for group, fields in enumerate(oracle_step(case, step, tables)):
            for index, (field, value) in enumerate(fields.items()):
                if (group, step, field) not in case.absent:
                    layout[group, case.first_step + step, index] = len(words)
                    words += value + [POISON] * GAP
    return layout, torch.tensor(words, dtype=torch.int32)


def place_rope(case: DraftCase, cos: list[Tensor], sin: list[Tensor]) -> tuple[Tensor, Tensor]:
    layout = torch.full((len(case.rope), case.num_banks, 2), -1, dtype=torch.int32)
    gap = torch.full((case.rope_gap,), float("nan"))
    parts, size = [gap], case.rope_gap
    for step in range(len(case.rows)):
        positions = oracle_step(case, step, make_tables(case))[0]["positions"]
        for config, tables in enumerate(zip(cos, sin, strict=True)):
            for index, table in enumerate(tables):
                if (config, step, ("cos", "sin")[index]) not in case.absent:
                    layout[config, case.first_step + step, index] = size
                    last = table.shape[0] - 1
                    rows = [table[min(position, last)] for position in positions]
                    parts += [*rows, gap]
                    size += len(rows) * table.shape[1] + case.rope_gap
    return layout, torch.cat(parts)


def _to_strided(table: Tensor, device: str) -> Tensor:
    wide = torch.empty(table.shape[0] * table.stride(0), dtype=table.dtype, device=device)
    view = wide.view(table.shape[0], table.stride(0))[:, : table.shape[1]]
    view.copy_(table)
    return view


def run_case(case: DraftCase, impl: str, device: str = "cpu") -> None:
    tables = make_tables(case)
    cos, sin = rope_tables(case)
    layout, expected = place(case, tables)
    rope_layout, expected_rope = place_rope(case, cos, sin)
    arena = torch.full_like(expected, POISON).to(device)
    bank = torch.full_like(expected_rope, float("nan")).to(device)
    moved = [[t.to(device) for t in group] for group in (tables, cos, sin)]
    moved[0] = [_to_strided(table, device) for table in tables]
    pointers = [word for t in moved[0] for word in (t.data_ptr(), t.stride(0), t.shape[1])]
    pointers += [t.data_ptr() for pair in zip(moved[1], moved[2], strict=True) for t in pair]

    def staged(values: list[int], size: int) -> Tensor:
        # Words past the real batch hold what an earlier batch left there: small, hence plausible.
        return torch.tensor(values + [1] * (size - len(values)), dtype=torch.int32, device=device)

    draft_steps(
        staged(case.starts, case.rows[0] + 1),
        staged(case.lens, case.rows[0]),
        staged(case.rejected, case.rows[0]),
        staged([case.num_reqs if case.told is None else case.told], 1),
        *moved,
        torch.tensor(pointers, dtype=torch.int64, device=device),
        arena,
        layout.to(device),
        bank,
        rope_layout.to(device),
        case.block_sizes,
        case.rows,
        case.tokens,
        case.first_step,
        case.tp,
        case.rank,
        case.pad_query_len,
        case.max_model_len,
        case.saturate,
        case.repeat,
        case.causal,
        impl,
        None if case.drafts is None else staged(case.drafts, case.rows[0]),
        case.start_counts,
    )
    assert arena.tolist() == expected.tolist()
    assert torch.equal(bank.cpu().view(torch.int32), expected_rope.view(torch.int32))
