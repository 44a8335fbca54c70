"""The table at the end of a replay, and the same as JSON."""

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dsacp.app.replay.result import ReplayResult
from dsacp.app.replay.settings import SettingsError
from dsacp.core import write_whole


def print_report(result: ReplayResult, console: Console) -> None:
    """Print what a replay did and found."""
    table = Table(title="dsacp replay", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    for name, value in report_rows(result):
        table.add_row(name, value)
    console.print(table)
    for example in result.findings.examples:
        console.print(f"[red]mismatch[/red] {example}", highlight=False, soft_wrap=True)


def report_rows(result: ReplayResult) -> list[tuple[str, str]]:
    """Return names and values of the table."""
    rate = result.steps / result.seconds if result.seconds else 0.0
    rows = [
        ("engine steps", f"{result.steps:,} in {result.seconds:.1f} s ({rate:.1f} per second)"),
        ("captured sizes", _captured(result)),
        ("requests", _requests(result)),
        ("tokens", f"{result.prompt_tokens:,} prompt, {result.output_tokens:,} generated"),
        ("acceptance by position", _acceptance(result)),
        ("ranks checked", f"{len(result.ranks)}"),
        ("fields compared", f"{result.findings.fields_compared:,}"),
        ("mismatches", _verdict(result.findings.mismatches)),
        ("addresses moved", _verdict(result.findings.addresses_moved)),
        ("buckets used", _buckets(result)),
        *_cost(result),
        ("buffers", _buffers(result)),
    ]
    if result.smallest_margin is not None:
        rows.append(("smallest top-1 margin", f"{result.smallest_margin:.2e}"))
    return rows


def write_json(result: ReplayResult, path: Path) -> None:
    """Write the report as JSON.

    Raises:
        SettingsError: the file could not be written after all.
    """
    try:
        write_whole(path, json.dumps(result.as_json(), indent=2) + "\n")
    except OSError as error:
        raise SettingsError(f"expected --json {path} to take the report, found: {error}") from None


def _requests(result: ReplayResult) -> str:
    refused = f", {result.refused} refused" if result.refused else ""
    of = "" if result.complete else f" [red]of {result.expected_requests:,}, incomplete[/red]"
    return f"{result.requests:,} finished{refused}{of}, {result.preemptions} preemptions"


def _captured(result: ReplayResult) -> str:
    sizes = ", ".join(str(size) for size in result.captured) or "none"
    changed = sorted(set(result.asked) - set(result.captured))
    rounded = f", rounded up from {changed}" if changed else ""
    return f"{sizes} in {result.capture_seconds:.1f} s{rounded}"


def _acceptance(result: ReplayResult) -> str:
    shares = [f"{at}: {share:.1%}" for at, share in result.acceptance.items()]
    return "  ".join(shares) or "no draft was verified"


def _verdict(count: int) -> str:
    return f"[{'red' if count else 'green'}]{count:,}[/]"


def _buckets(result: ReplayResult) -> str:
    used = [f"{size}: {count:,}" for size, count in sorted(result.buckets.items()) if size]
    eager = result.buckets.get(0, 0)
    return "  ".join([*used, f"none (eager): {eager:,}"])


def _cost(result: ReplayResult) -> list[tuple[str, str]]:
    cost = result.cost
    if cost is None:
        return [("metadata a step and rank", "not measured: no step had a bucket")]
    return [
        (
            "metadata a step and rank",
            f"eager {cost.eager_launches:.0f} launches, {cost.eager_us:,.0f} us",
        ),
        ("", f"graph {cost.graph_launches:.0f} launches, {cost.graph_us:,.0f} us"),
    ]


def _buffers(result: ReplayResult) -> str:
    total = sum(result.buffer_bytes.values())
    parts = [f"{owner} {size / 2**20:.1f}" for owner, size in sorted(result.buffer_bytes.items())]
    return f"{total / 2**20:.1f} MiB ({', '.join(parts)})"
