"""``dsacp explain`` on the command line."""

from typing import Annotated, Any

import typer

from dsacp.app.cli.common import BAD_INPUT, commands, numbers, stop
from dsacp.core import DsacpError


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
    try:
        starts = numbers(query_start_loc, "--query-start-loc") or ()
        lengths = numbers(seq_lens, "--seq-lens") or ()
        typer.echo(commands().explain(starts, lengths, policy, fields))
    except DsacpError as error:
        raise stop(error, BAD_INPUT) from None
