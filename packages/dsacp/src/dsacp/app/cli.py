"""The ``dsacp`` command. Torch is imported when a command runs, so that help is fast."""

import importlib
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from dsacp.app.demo import serve_demo
from dsacp.app.settings import ReplayConfig
from dsacp.app.trace import load_trace
from dsacp.core import DsacpError

DEFAULTS = ReplayConfig()
FAILED, BAD_INPUT = 1, 2

app = typer.Typer(
    help="Graph-safe draft metadata for DSA context parallelism.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
app.command("serve-demo", context_settings=_PASSED_ON, add_help_option=False)(serve_demo)


@app.callback()
def _root() -> None:
    """Keep command names even while there is one command."""


def _sizes(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise typer.BadParameter(f"expected numbers with commas, found {text!r}") from None


@app.command()
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
        int | None, typer.Option(help="Requests of one step [6 with a model, 64 without].")
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(help="Tokens of one step [64 with a model, 2048 without].")
    ] = None,
    capture_sizes: Annotated[
        str | None,
        typer.Option(help="Tokens to capture, e.g. 8,16; rounded up to lcm(K+1, tp); '' is none."),
    ] = None,
    draft_tokens: Annotated[
        int, typer.Option(help="K, draft tokens a step.")
    ] = DEFAULTS.draft_tokens,
    tp: Annotated[int, typer.Option(help="Ranks that share the tokens.")] = DEFAULTS.tp,
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
        int | None, typer.Option(help="Tokens at which a request ends [beyond the longest one].")
    ] = None,
    kv_tokens: Annotated[
        int | None, typer.Option(help="Tokens that the KV caches hold; fewer cause preemption.")
    ] = None,
    layout: Annotated[
        str, typer.Option(help="Rows of later draft steps in a bucket: requests or tokens.")
    ] = DEFAULTS.layout,
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

    Exits with 0 when nothing differs and no address moved, 1 otherwise, 2 on bad input.
    """
    settings = {**locals(), "capture_sizes": _sizes(capture_sizes)}
    try:
        config = ReplayConfig(**settings)
    except DsacpError as error:
        raise _stop(error, BAD_INPUT) from None
    raise typer.Exit(_replay(config))


@app.command()
def explain(
    query_start_loc: Annotated[str, typer.Option(help="Query starts, e.g. 0,4,8,9.")],
    seq_lens: Annotated[str, typer.Option(help="KV lengths, e.g. 5000,300,128.")],
    heads: Annotated[int, typer.Option(help="Query heads.")] = 64,
    cores: Annotated[int, typer.Option(help="Cube cores.")] = 24,
    device_family: Annotated[str, typer.Option(help="a2 (also A3) or a5.")] = "a2",
    window_left: Annotated[int, typer.Option(help="Window tokens before the query's own.")] = 127,
    ratio: Annotated[int, typer.Option(help="Compress ratio: 1, 4 or 128.")] = 1,
    topk: Annotated[int, typer.Option(help="Compressed rows that the indexer selects.")] = 0,
    policy: Annotated[str, typer.Option(help="upstream or balanced.")] = "upstream",
) -> None:
    """Print which core attends which query rows, and how even the split is."""
    fields: dict[str, Any] = {
        "num_heads": heads,
        "device_family": device_family,
        "num_cores": cores,
        "window_left": window_left,
        "cmp_ratio": ratio,
        "cmp_topk": topk,
    }
    starts, lengths = _sizes(query_start_loc) or (), _sizes(seq_lens) or ()
    try:
        typer.echo(_commands().explain(starts, lengths, policy, fields))
    except DsacpError as error:
        raise _stop(error, BAD_INPUT) from None


@app.command()
def doctor(
    max_num_seqs: Annotated[
        int | None, typer.Option(help="Requests of one step; given, the configuration is checked.")
    ] = None,
    max_num_batched_tokens: Annotated[int, typer.Option(help="Tokens of one step.")] = 8192,
    draft_tokens: Annotated[
        int, typer.Option(help="K, draft tokens a step.")
    ] = DEFAULTS.draft_tokens,
    tp: Annotated[int, typer.Option(help="Ranks that share the tokens.")] = DEFAULTS.tp,
    capture_sizes: Annotated[
        str | None, typer.Option(help="Captured token counts as the engine is told, e.g. 8,16.")
    ] = None,
    max_model_len: Annotated[int | None, typer.Option(help="Longest request.")] = None,
    model_config: Annotated[
        Path | None, typer.Option(help="The model's config.json, or its folder.")
    ] = None,
    draft_enforce_eager: Annotated[
        bool, typer.Option(help="The speculative configuration says enforce_eager.")
    ] = False,
    hooks: Annotated[
        bool, typer.Option(help="Import the engine in a process of its own and check hooks.")
    ] = True,
    strict: Annotated[bool, typer.Option(help="Let warnings fail too.")] = False,
) -> None:
    """Say what host is here, what fits, and what a serving configuration would meet.

    Exits with 0 when nothing has to change, 1 otherwise, 2 on bad input.
    """
    examination = importlib.import_module("dsacp.app.doctor")
    try:
        model = examination.read_model(model_config)
    except DsacpError as error:
        raise _stop(error, BAD_INPUT) from None
    serving = None
    if max_num_seqs is not None:
        serving = examination.Serving(
            max_num_seqs,
            max_num_batched_tokens,
            draft_tokens,
            tp,
            _sizes(capture_sizes) or (),
            max_model_len,
            draft_enforce_eager,
            model,
        )
    sections = examination.examine(serving, hooks)
    typer.echo(examination.report(sections))
    raise typer.Exit(examination.exit_code(sections, strict))


def _replay(config: ReplayConfig) -> int:
    try:
        trace = load_trace(config.trace, config.requests)
        _commands().prepare(config, trace)
    except DsacpError as error:
        raise _stop(error, BAD_INPUT) from None
    try:
        same = _commands().replay(config, trace, Console())
    except DsacpError as error:
        raise _stop(error, FAILED) from None
    return 0 if same else FAILED


def _commands() -> Any:
    return importlib.import_module("dsacp.app.commands")


def _stop(error: DsacpError, code: int) -> typer.Exit:
    typer.echo(f"{type(error).__name__}: {error}", err=True)
    return typer.Exit(code)


def main() -> None:
    """Run the command."""
    app()
