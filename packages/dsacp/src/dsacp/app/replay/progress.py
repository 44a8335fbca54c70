"""A progress bar over finished requests."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from dsacp.app.replay.lockstep import Progress as Report


@contextmanager
def bar(total: int, console: Console) -> Iterator[Report]:
    """Show a bar while the block runs; yields the function that moves it."""
    columns = (
        TextColumn("requests"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[steps]} steps"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as display:
        task = display.add_task("replay", total=total, steps=0)

        def report(finished: int, steps: int) -> None:
            display.update(task, completed=finished, steps=steps)

        yield report
