"""Compare the most loaded core of both plan policies over a trace, by the model of row costs.

Run: python benchmarks/makespan.py TRACE [--requests N] [--json FILE]
Requests are scheduled as by `dsacp replay --drafter none`; no model runs, and no device is used.
Every figure is in the planner's own cost unit (upstream U6): a model's word, not a time.
"""

import json as json_format
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
import typer
from makespan_report import Record, print_tables, summarise
from rich.console import Console
from rich.progress import track

from dsacp.app.replay.acceptance import GeometricAcceptance
from dsacp.app.replay.batches import HostBatch
from dsacp.app.replay.builders import RankBuilders, Setup
from dsacp.app.replay.session import make_setup
from dsacp.app.replay.settings import ReplayConfig
from dsacp.app.scheduling import EngineStep, Scheduler
from dsacp.app.traces.read import TraceRequest, load_trace
from dsacp.core import check_output, write_whole
from dsacp.drafting_cache import StepMetadata
from dsacp.kernels.sas_plan.planner import split_rows
from dsacp.sas_metadata import QliSpec, SasSpec
from dsacp.sas_metadata.costs import batch_costs
from dsacp.sas_metadata.spec import POLICIES


class Planned(NamedTuple):
    """Largest cost of a core under both policies, and the cost of the whole batch."""

    upstream: int
    balanced: int
    total: int


@dataclass(frozen=True)
class Call:
    """One attention or indexer call of a step on one rank: label, specification and rows."""

    role: str
    label: str
    spec: SasSpec | QliSpec
    starts: Sequence[int]
    lens: Sequence[int]

    def plan(self) -> Planned:
        """Plan the call twice on the host."""
        costs = batch_costs(self.spec, self.starts, self.lens)
        largest = []
        for policy in POLICIES:
            ends = split_rows(self.spec.plan_spec(policy), costs.query_lens, costs.seq_lens)
            marks = [0, *(costs.before(end) for end in ends)]
            largest.append(max(after - before for before, after in pairwise(marks)))
        return Planned(*largest, costs.total)


def kind_of(step: EngineStep) -> str:
    """Name what a batch consists of."""
    decodes = sum(row.is_decode for row in step.rows)
    if decodes == step.num_reqs:
        return "decode"
    return "mixed" if decodes else "prefill"


def calls_of(setup: Setup, role: str, steps: Sequence[StepMetadata]) -> Iterator[Call]:
    """Yield every planned call of one rank, with its rank-local rows."""
    plan = setup.plan
    groups = plan.target_groups if role == "target" else plan.draft_groups
    for group in groups:
        spec = group.sas or group.qli
        if spec is None:
            continue
        label = "indexer" if isinstance(spec, QliSpec) else f"ratio {spec.cmp_ratio}"
        for step in steps:
            fields = step.groups[group.name]
            starts, lens = fields.local_query_start_loc, fields.local_seq_lens
            name = role if role == "target" else f"draft {step.draft_index}"
            yield Call(name, label, spec, starts.tolist(), lens.tolist())


def records_of(
    setup: Setup, ranks: Sequence[RankBuilders], batch: HostBatch, rejected: torch.Tensor
) -> Iterator[Record]:
    """Plan the calls of one engine step on all ranks."""
    known: dict[tuple[object, ...], Planned] = {}
    for rank in ranks:
        built = {
            "target": rank.target.build_all(batch.first(), 1),
            "draft": rank.draft.build_all(batch.first(rejected)),
        }
        for role, steps in built.items():
            for call in calls_of(setup, role, steps):
                key = (call.spec, tuple(call.starts), tuple(call.lens))
                if key not in known:
                    known[key] = call.plan()
                yield Record(
                    batch.step.index, kind_of(batch.step), call.role, call.label, *known[key]
                )


def study(config: ReplayConfig, trace: Sequence[TraceRequest]) -> list[Record]:
    """Schedule the trace and plan every step."""
    setup, _ = make_setup(config, trace)
    ranks = [RankBuilders.of(setup, rank) for rank in range(config.tp)]
    scheduler = Scheduler(setup.scheduler, trace, setup.tables)
    chance = GeometricAcceptance(config.acceptance, config.draft_tokens, config.seed)
    records: list[Record] = []

    def steps() -> Iterator[EngineStep]:
        while (step := scheduler.next_step()) is not None:
            yield step

    for step in track(steps(), "planning", total=None, transient=True):
        bucket = setup.capacity.bucket(step.num_tokens, step.num_reqs, step.uniform)
        batch = HostBatch.of(step, bucket, setup.device)
        sampled = chance.sampled(step)
        records += records_of(setup, ranks, batch, batch.rejected(sampled))
        scheduler.finish(step, sampled, chance.proposed(step))
    return records


def main(
    trace: Annotated[Path, typer.Argument(help="Azure CSV or JSON lines.")],
    requests: Annotated[int, typer.Option(help="Requests to take from the trace.")] = 400,
    max_num_seqs: Annotated[int, typer.Option(help="Requests of one step.")] = 64,
    tp: Annotated[int, typer.Option(help="Ranks that share the tokens.")] = 8,
    draft_tokens: Annotated[int, typer.Option(help="K, draft tokens a step.")] = 3,
    json: Annotated[Path | None, typer.Option(help="Write the figures as JSON.")] = None,
) -> None:
    """Print makespans of "balanced" over "upstream", and what they add up to."""
    check_output("--json", json, reads=[trace])
    torch.set_num_threads(1)
    config = ReplayConfig(
        requests=requests, max_num_seqs=max_num_seqs, tp=tp, draft_tokens=draft_tokens,
        drafter="none",
    )  # fmt: skip
    summary = summarise(study(config, load_trace(trace, requests)))
    print_tables(summary, Console(width=160))
    if json is not None:
        write_whole(json, json_format.dumps([row._asdict() for row in summary], indent=1))


if __name__ == "__main__":
    typer.run(main)
