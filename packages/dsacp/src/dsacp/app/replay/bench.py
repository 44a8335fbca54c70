"""``dsacp bench``: what metadata of one engine step costs in each bucket, eager and by graph."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.table import Table

from dsacp.app.replay.builders import RankBuilders
from dsacp.app.replay.executors import EagerExecutor, GraphExecutor, warm_up_batch
from dsacp.app.replay.measure import measure_cost
from dsacp.app.replay.passes import MetadataOnly
from dsacp.app.replay.result import MetadataCost
from dsacp.app.replay.session import make_setup
from dsacp.app.replay.settings import ReplayConfig, SettingsError
from dsacp.app.traces.synthetic import synthetic_trace


@dataclass(frozen=True)
class BucketCost:
    """The cost of one captured size.

    Attributes:
        bucket: step-0 tokens.
        requests: requests of K+1 tokens that fill it.
        cost: of one rank, target and drafter together.
    """

    bucket: int
    requests: int
    cost: MetadataCost

    @property
    def ratio(self) -> float:
        """Time of the graph side as a share of the eager one."""
        return self.cost.graph_us / self.cost.eager_us


def bench(
    config: ReplayConfig, clock: Callable[[], float] = time.perf_counter
) -> Iterator[BucketCost]:
    """Measure rank 0 in every bucket with a full batch; no model runs.

    Raises:
        DsacpError: settings contradict each other, or name no bucket.
    """
    setup, _ = make_setup(config, synthetic_trace())
    if not setup.capacity.capture_sizes:
        raise SettingsError("expected --capture-sizes to measure, found none: pass some, e.g. 8,16")
    passes, query_len = MetadataOnly(), config.draft_tokens + 1
    for bucket in setup.capacity.capture_sizes:
        eager, graph = ([RankBuilders.of(setup, 0)] for _ in range(2))
        requests = bucket // query_len
        batch = warm_up_batch(requests, query_len, bucket, setup.device)
        sides = EagerExecutor(eager, passes), GraphExecutor(graph, passes, {}, {})
        yield BucketCost(bucket, requests, measure_cost(*sides, batch, clock))


def cost_table(rows: list[BucketCost], device: str) -> Table:
    """Return the figures; on the CPU times are those of the reference, so that only ratios tell."""
    table = Table(title=f"metadata of one engine step, one rank, {device}", title_justify="left")
    for name in ("bucket", "requests", "launches eager", "by graph", "time by graph : eager"):
        table.add_column(name, justify="right")
    for row in rows:
        times = f" ({row.cost.graph_us:,.0f} : {row.cost.eager_us:,.0f} us)"
        table.add_row(
            str(row.bucket),
            str(row.requests),
            f"{row.cost.eager_launches:.0f}",
            f"{row.cost.graph_launches:.0f}",
            f"{row.ratio:.2f}{'' if device == 'cpu' else times}",
        )
    return table
