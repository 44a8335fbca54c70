"""Distributions of makespan ratios, and what they add up to over a trace."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

QUANTILES = (5, 25, 50, 75, 95)
GAINS = (1, 5, 10)
KINDS = ("decode", "mixed", "prefill", "all")


class Record(NamedTuple):
    """One call on one rank: largest cost of a core under both policies, cost of all its rows."""

    step: int
    kind: str
    role: str
    label: str
    upstream: int
    balanced: int
    total: int


class Summary(NamedTuple):
    """One line of the tables.

    Attributes:
        role, label, kind: of the calls in it.
        calls: with work to split; ranks without are left out.
        percentiles: of balanced over upstream, at ``QUANTILES``.
        mean: of the same.
        shares: share of calls whose makespan falls by more than ``GAINS`` percent.
        saved: share by which the sum over steps of the slowest rank falls.
    """

    role: str
    label: str
    kind: str
    calls: int
    percentiles: tuple[float, ...]
    mean: float
    shares: tuple[float, ...]
    saved: float


def summarise(records: Iterable[Record]) -> list[Summary]:
    """Group records by call and by kind of batch."""
    groups: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for record in records:
        if record.total > 0:
            groups[record.role, record.label, record.kind].append(record)
            groups[record.role, record.label, "all"].append(record)
    order = sorted(groups, key=lambda key: (key[0] != "target", *key[:2], KINDS.index(key[2])))
    return [_summary(*key, groups[key]) for key in order]


def _summary(role: str, label: str, kind: str, records: Sequence[Record]) -> Summary:
    ratios = sorted(record.balanced / record.upstream for record in records)
    gains = [sum(ratio < 1 - gain / 100 for ratio in ratios) / len(ratios) for gain in GAINS]
    # The ranks meet after every call: the slowest one is what a step waits for.
    slowest: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for record in records:
        pair = slowest[record.step]
        pair[0], pair[1] = max(pair[0], record.upstream), max(pair[1], record.balanced)
    upstream, balanced = (sum(pair[index] for pair in slowest.values()) for index in (0, 1))
    return Summary(
        role, label, kind, len(ratios), tuple(_percentile(ratios, at) for at in QUANTILES),
        statistics.fmean(ratios), tuple(gains), 1 - balanced / upstream,
    )  # fmt: skip


def _percentile(ordered: Sequence[float], percent: int) -> float:
    return ordered[min(len(ordered) * percent // 100, len(ordered) - 1)]


def print_tables(summary: Sequence[Summary], console: Console) -> None:
    """Print one table; lines follow the order of ``summarise``."""
    table = Table(title="makespan of balanced over upstream (cost model, not time)")
    for name in ("call", "kind", "batch", "calls", *(f"p{at}" for at in QUANTILES), "mean"):
        table.add_column(name)
    for gain in GAINS:
        table.add_column(f"gain > {gain} %")
    table.add_column("saved")
    for row in summary:
        table.add_row(
            row.role, row.label, row.kind, f"{row.calls:,}",
            *(f"{value:.3f}" for value in (*row.percentiles, row.mean)),
            *(f"{100 * share:.1f} %" for share in (*row.shares, row.saved)),
        )  # fmt: skip
    console.print(table)
