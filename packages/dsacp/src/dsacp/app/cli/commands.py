"""What the commands do, apart from the command line so that its help needs no torch."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from rich.console import Console

from dsacp.app.replay.distributed import enter_processes, is_first, leave_processes
from dsacp.app.replay.progress import bar
from dsacp.app.replay.report import print_report, write_json
from dsacp.app.replay.session import make_setup, run_replay
from dsacp.app.replay.settings import ReplayConfig
from dsacp.app.traces.read import TraceRequest, trace_file
from dsacp.core import LayoutError, check_output, check_whole
from dsacp.sas_metadata import SasSpec, plan_sas
from dsacp.sas_metadata import explain as explain_words


def prepare(config: ReplayConfig, trace: Sequence[TraceRequest]) -> None:
    """Meet the other processes of ``torchrun``, if any, and check the settings.

    Raises:
        DsacpError: settings contradict each other, or do not fit the trace or the processes.
    """
    check_output("--json", config.json, reads=[trace_file(config.trace)])
    enter_processes(config)
    make_setup(config, trace)


def replay(config: ReplayConfig, trace: Sequence[TraceRequest], console: Console) -> bool:
    """Replay a trace behind a progress bar, report, and return whether nothing differed.

    Of several processes the first reports; all return the same.

    Raises:
        DsacpError: a guard found a broken invariant.
    """
    shown = console if is_first() else Console(quiet=True)
    with bar(len(trace), shown) as progress:
        result = run_replay(config, trace, progress)
    if is_first():
        print_report(result, console)
        if config.json is not None:
            write_json(result, config.json)
    leave_processes()
    return result.ok


def explain(
    query_start_loc: Sequence[int], seq_lens: Sequence[int], policy: str, fields: dict[str, Any]
) -> str:
    """Return the table of a SAS work split; ``fields`` are those of ``SasSpec``.

    Raises:
        LayoutError: a value does not fit the others.
    """
    _check_batch(query_start_loc, seq_lens)
    for name, value in fields.items():
        if isinstance(value, int):
            check_whole(name, value, 0)
    starts = torch.tensor(query_start_loc, dtype=torch.int32)
    lengths = torch.tensor(seq_lens, dtype=torch.int32)
    spec = SasSpec(**fields)
    chosen: Any = policy
    words = plan_sas(spec, starts, lengths, policy=chosen)
    return explain_words(words, spec, starts, lengths)


def _check_batch(query_start_loc: Sequence[int], seq_lens: Sequence[int]) -> None:
    if query_start_loc[:1] != (0,) or list(query_start_loc) != sorted(query_start_loc):
        raise LayoutError(
            f"expected --query-start-loc from 0 on and never falling, found {query_start_loc}: "
            "pass where each request's queries start, and their count"
        )
    for index, (pair, length) in enumerate(zip(pairwise(query_start_loc), seq_lens, strict=False)):
        if 0 < length < pair[1] - pair[0]:
            raise LayoutError(
                f"expected --seq-lens with the queries counted, found {length} for the "
                f"{pair[1] - pair[0]} queries of request {index}: pass KV lengths after the step"
            )
