"""What the commands share: exit codes, lists of numbers, errors as one line."""

import importlib
import re
from typing import Annotated, Any

import typer

from dsacp.app.replay.settings import ReplayConfig
from dsacp.core import INT32_MAX, DsacpError, LayoutError

DEFAULTS = ReplayConfig()
FAILED, BAD_INPUT, DEFECT = 1, 2, 3
"""Something differs; arguments or files are at fault; dsacp itself is."""

DraftTokens = Annotated[int, typer.Option(help="K, draft tokens a step.")]
Ranks = Annotated[int, typer.Option(help="Ranks that share the tokens.")]
Layout = Annotated[
    str, typer.Option(help="Rows of later draft steps in a bucket: requests or tokens.")
]


def numbers(text: str | None, name: str) -> tuple[int, ...] | None:
    """Read whole numbers with commas between them; None stays None.

    Raises:
        LayoutError: a part is no decimal number, or larger than int32 holds.
    """
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",") if part.strip()]
    for part in parts:
        if not re.fullmatch("[0-9]{1,10}", part) or int(part) > INT32_MAX:
            raise LayoutError(
                f"expected {name} as numbers with commas, found {part[:40]!r}: pass whole numbers "
                f"of 0..{INT32_MAX}, such as 8,16"
            )
    return tuple(int(part) for part in parts)


def commands() -> Any:
    """Import what the commands do, and torch with it."""
    return importlib.import_module("dsacp.app.cli.commands")


def stop(error: DsacpError, code: int) -> typer.Exit:
    """Print an error as one line and return the exit to raise."""
    typer.echo(f"{type(error).__name__}: {' '.join(str(error).split())}", err=True)
    return typer.Exit(code)
