"""``dsacp replay`` on the command line."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from dsacp.app.cli.common import (
    BAD_INPUT,
    DEFAULTS,
    FAILED,
    DraftTokens,
    Layout,
    Ranks,
    commands,
    numbers,
    stop,
)
from dsacp.app.replay.settings import ReplayConfig, SettingsError
from dsacp.app.traces.read import load_trace
from dsacp.core import DsacpError


def replay(
    trace: Annotated[
        Path | None,
        typer.Option(help="Azure CSV or JSON lines; by default one recorded from vLLM."),
    ] = None,
    requests: Annotated[int | None, typer.Option(help="Requests to take from the trace.")] = None,
    step_ms: Annotated[
        float, typer.Option(help="Virtual milliseconds of an engine step.")
    ] = DEFAULTS.step_ms,
    max_num_seqs: Annotated[
        int | None, typer.Option(help="Requests of one step (6 with a model, 64 without).")
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(help="Tokens of one step (64 with a model, 2048 without).")
    ] = None,
    capture_sizes: Annotated[
        str | None,
        typer.Option(help="Tokens to capture, e.g. 8,16; rounded up to lcm(K+1, tp); '' is none."),
    ] = None,
    draft_tokens: DraftTokens = DEFAULTS.draft_tokens,
    tp: Ranks = DEFAULTS.tp,
    drafter: Annotated[
        str, typer.Option(help="mtp: run the reference model; none: metadata only.")
    ] = DEFAULTS.drafter,
    acceptance: Annotated[
        float, typer.Option(help="Chance of a draft to be accepted, with --drafter none.")
    ] = DEFAULTS.acceptance,
    seed: Annotated[int, typer.Option(help="Of weights, prompts, acceptance.")] = DEFAULTS.seed,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = DEFAULTS.device,
    json: Annotated[Path | None, typer.Option(help="Write the report as JSON.")] = None,
    max_model_len: Annotated[
        int | None, typer.Option(help="Tokens at which a request ends (beyond the longest one).")
    ] = None,
    kv_tokens: Annotated[
        int | None,
        typer.Option(
            help="Tokens of every KV group, in whole blocks and beside one block for each of "
            "--max-num-seqs requests; fewer cause preemption."
        ),
    ] = None,
    layout: Layout = DEFAULTS.layout,
    padding: Annotated[
        str, typer.Option(help="Padded rows: dummy (Ascend) or repeat (vLLM V2).")
    ] = DEFAULTS.padding,
    overflow: Annotated[
        str, typer.Option(help="Draft steps at max_model_len: reset or saturate.")
    ] = DEFAULTS.overflow,
    workers: Annotated[
        int | None, typer.Option(help="Processes that share the ranks, with --drafter none.")
    ] = None,
) -> None:
    """Replay a trace eager and by graph replay, and compare everything.

    Exits with 0 when every request ended, nothing differs and no address moved, 1 otherwise, 2 on
    bad input.
    """
    settings: dict[str, Any] = dict(locals())
    try:
        settings["capture_sizes"] = numbers(capture_sizes, "--capture-sizes")
        config = ReplayConfig(**settings)
    except DsacpError as error:
        raise stop(error, BAD_INPUT) from None
    raise typer.Exit(_replay(config))


def _replay(config: ReplayConfig) -> int:
    try:
        trace = load_trace(config.trace, config.requests)
        commands().prepare(config, trace)
    except DsacpError as error:
        raise stop(error, BAD_INPUT) from None
    try:
        same = commands().replay(config, trace, Console())
    except SettingsError as error:
        raise stop(error, BAD_INPUT) from None
    except DsacpError as error:
        raise stop(error, FAILED) from None
    return 0 if same else FAILED
