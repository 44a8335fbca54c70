"""``dsacp bench`` on the command line."""

import importlib
from typing import Annotated, Any

import typer
from rich.console import Console

from dsacp.app.cli.common import BAD_INPUT, DEFAULTS, DraftTokens, Layout, Ranks, numbers, stop
from dsacp.app.replay.settings import ReplayConfig
from dsacp.core import DsacpError


def bench(
    capture_sizes: Annotated[
        str, typer.Option(help="Buckets to measure, in tokens; rounded up to lcm(K+1, tp).")
    ] = "4,16,64",
    draft_tokens: DraftTokens = DEFAULTS.draft_tokens,
    tp: Ranks = DEFAULTS.tp,
    layout: Layout = DEFAULTS.layout,
    device: Annotated[
        str, typer.Option(help="cpu (launches and ratios only) or cuda.")
    ] = DEFAULTS.device,
) -> None:
    """Measure what metadata of one engine step costs on one rank, eager and by graph replay."""
    work = importlib.import_module("dsacp.app.replay.bench")
    settings: dict[str, Any] = {"layout": layout, "device": device, "tp": tp}
    try:
        sizes = numbers(capture_sizes, "--capture-sizes")
        config = ReplayConfig(
            **settings, drafter="none", draft_tokens=draft_tokens, capture_sizes=sizes
        )
        rows = list(work.bench(config))
    except DsacpError as error:
        raise stop(error, BAD_INPUT) from None
    Console().print(work.cost_table(rows, device))
