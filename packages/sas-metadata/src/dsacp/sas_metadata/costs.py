"""Estimated costs of rows and cores, in the planner's own unit (upstream U6)."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor

from dsacp.core import LayoutError
from dsacp.kernels.sas_plan.planner import BatchCosts, cost_model, largest_block_count
from dsacp.sas_metadata.codec import CoreRange
from dsacp.sas_metadata.spec import QliSpec, SasSpec

Batch = Tensor | Sequence[int]


def batch_costs(spec: SasSpec | QliSpec, query_start_loc: Batch, seq_lens: Batch) -> BatchCosts:
    """Return cost prefixes of a batch: ``.starts``, ``.total``, ``.peak``, ``.before(cursor)``.

    Raises:
        LayoutError: there are not B+1 query starts for B lengths.
    """
    query_lens, lens = _host_batch(query_start_loc, seq_lens)
    return BatchCosts(cost_model(spec.plan_spec()), query_lens, lens)


def row_costs(spec: SasSpec | QliSpec, query_start_loc: Batch, seq_lens: Batch) -> list[list[int]]:
    """Return the cost of every row, a list a request; meant for reports, not for planning."""
    costs = batch_costs(spec, query_start_loc, seq_lens)
    result = []
    for request, query_len in enumerate(costs.query_lens):
        rows = costs.model.rows(max(query_len, 0))
        marks = [costs.before((request, row)) for row in range(rows)]
        marks.append(costs.starts[request + 1])
        result.append([after - before for before, after in pairwise(marks)])
    return result


def core_costs(
    spec: SasSpec | QliSpec,
    ranges: Sequence[CoreRange],
    query_start_loc: Batch,
    seq_lens: Batch,
) -> list[int]:
    """Return the cost of every range."""
    costs = batch_costs(spec, query_start_loc, seq_lens)
    return [costs.before(item.end) - costs.before(item.start) for item in ranges]


def lower_bound(costs: BatchCosts, num_ranges: int) -> int:
    """Return a cost that the most loaded core of any plan of the batch reaches."""
    return max(costs.peak, -(-costs.total // num_ranges))


def true_block_count(
    spec: SasSpec, ranges: Sequence[CoreRange], query_start_loc: Batch, seq_lens: Batch
) -> int:
    """Return the KV blocks of the core that has most: the least legal word 8 of paired cores."""
    query_lens, lens = _host_batch(query_start_loc, seq_lens)
    ends = [item.end for item in ranges]
    return largest_block_count(spec.plan_spec(), query_lens, lens, ends)


def _host_batch(query_start_loc: Batch, seq_lens: Batch) -> tuple[list[int], list[int]]:
    starts, lens = (
        value.tolist() if isinstance(value, Tensor) else list(value)
        for value in (query_start_loc, seq_lens)
    )
    if len(starts) != len(lens) + 1:
        raise LayoutError(
            f"expected {len(lens) + 1} query starts for {len(lens)} requests, found {len(starts)}"
        )
    return [after - before for before, after in pairwise(starts)], lens
