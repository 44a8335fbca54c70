"""``dsacp doctor`` on the command line."""

import importlib
from pathlib import Path
from typing import Annotated

import typer

from dsacp.app.cli.common import BAD_INPUT, DEFAULTS, DraftTokens, Ranks, numbers, stop
from dsacp.core import DsacpError, LayoutError


def doctor(
    max_num_seqs: Annotated[
        int | None, typer.Option(help="Requests of one step; given, the configuration is checked.")
    ] = None,
    max_num_batched_tokens: Annotated[int, typer.Option(help="Tokens of one step.")] = 8192,
    draft_tokens: DraftTokens = DEFAULTS.draft_tokens,
    tp: Ranks = DEFAULTS.tp,
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
    dspark: Annotated[bool, typer.Option(help="DSpark: a whole block at once.")] = False,
    device: Annotated[str, typer.Option(help="a2 (A3 too) or a5: the format of slots.")] = "a2",
    hooks: Annotated[
        bool, typer.Option(help="Import the engine in a process of its own and check hooks.")
    ] = True,
    strict: Annotated[bool, typer.Option(help="Let warnings fail too.")] = False,
) -> None:
    """Say what host is here, what fits, and what a serving configuration would meet.

    Exits with 0 when nothing has to change, 1 otherwise, 2 on bad input.
    """
    examination = importlib.import_module("dsacp.app.doctor")
    serving = None
    serving_only = {
        "--model-config": model_config is not None,
        "--max-model-len": max_model_len is not None,
        "--capture-sizes": capture_sizes is not None,
        "--draft-enforce-eager": draft_enforce_eager,
        "--dspark": dspark,
    }
    try:
        model = examination.read_model(model_config)
        if max_num_seqs is not None:
            serving = examination.Serving(
                max_num_seqs,
                max_num_batched_tokens,
                draft_tokens,
                tp,
                numbers(capture_sizes, "--capture-sizes") or (),
                max_model_len,
                draft_enforce_eager,
                model,
                dspark,
                device,
            )
        elif unused := [name for name, given in serving_only.items() if given]:
            raise LayoutError(
                f"expected --max-num-seqs beside {', '.join(unused)}, found none: give it, or "
                "nothing of the configuration is examined"
            )
    except DsacpError as error:
        raise stop(error, BAD_INPUT) from None
    sections = examination.examine(serving, hooks)
    typer.echo(examination.report(sections))
    raise typer.Exit(examination.exit_code(sections, strict))
