"""The two splits of query rows over cores: upstream's greedy and the minimum-maximum one.

Both walk cursors (request, row). Costs before a cursor are one look-up plus a closed form, so a
core needs one binary search over the requests and one over the rows of one request.
"""

import itertools
from bisect import bisect_right
from collections.abc import Sequence

from dsacp.kernels.sas_plan.costs import CostModel, PlanSpec, SasCosts, cost_model

Cursor = tuple[int, int]


class BatchCosts:
    """Cost prefixes of one batch.

    Attributes:
        starts: cost before each request, and the total at index B.
        keys: cost up to which a core must be allowed to swallow each request: its end, less half
            of its last KV block (spec ascend 1.7, step a).
        peak: largest cost of one row.
    """

    def __init__(
        self, model: CostModel, query_lens: Sequence[int], seq_lens: Sequence[int]
    ) -> None:
        self.model = model
        self.query_lens = query_lens
        self.seq_lens = seq_lens
        self.count = len(seq_lens)
        self.starts = [0]
        self.keys: list[int] = []
        self.peak = 0
        total = half = 0
        for query_len, seq_len in zip(query_lens, seq_lens, strict=True):
            if query_len > 0 and seq_len > 0:
                rows = model.rows(query_len)
                cost = model.prefix(query_len, seq_len, rows)
                if cost:
                    total += cost
                    # A request without cost keeps the key before it: keys stay monotone and it
                    # is swallowed together with its predecessor.
                    half = model.last(query_len, seq_len, rows - 1) >> 1
                    self.peak = max(self.peak, model.peak(query_len, seq_len))
            self.starts.append(total)
            self.keys.append(total - half)
        self.total = total

    def before(self, cursor: Cursor) -> int:
        """Cost of all rows before a cursor."""
        request, row = cursor
        if row == 0:
            return self.starts[request]
        query_len, seq_len = self.query_lens[request], self.seq_lens[request]
        return self.starts[request] + self.model.prefix(query_len, seq_len, row)

    def rows_within(self, request: int, row: int, limit: int, half_block: bool) -> int:
        """First row from ``row`` on that a core may not take when costs may reach ``limit``.

        With ``half_block`` a row may exceed the limit by half of its last KV block.
        """
        query_len, seq_len = self.query_lens[request], self.seq_lens[request]
        model, limit = self.model, limit - self.starts[request]
        low, high = row, model.rows(query_len)
        while low < high:
            middle = (low + high) >> 1
            end = model.prefix(query_len, seq_len, middle + 1)
            if half_block:
                end -= model.last(query_len, seq_len, middle) >> 1
            if end <= limit:
                low = middle + 1
            else:
                high = middle
        return low


def _upstream(costs: BatchCosts, cores: int) -> list[Cursor]:
    ends: list[Cursor] = []
    request = row = used = 0
    for core in range(cores):
        limit = used + max((costs.total - used) // (cores - core), costs.peak)
        after = bisect_right(costs.keys, limit, request)
        if after > request:
            request, row = after, 0
        if request < costs.count:
            row = costs.rows_within(request, row, limit, half_block=True)
        ends.append((request, row))
        used = costs.before(ends[-1])
        if used == costs.total:
            break
    return ends


def _bounded(costs: BatchCosts, cores: int, bound: int) -> tuple[list[Cursor], int]:
    """Fill every core up to ``bound``; return the ends and the largest cost of a core."""
    ends: list[Cursor] = []
    used = largest = 0
    cursor = (0, 0)
    while used < costs.total and len(ends) < cores:
        request = bisect_right(costs.starts, used + bound, cursor[0] + 1) - 1
        row = cursor[1] if request == cursor[0] else 0
        if request < costs.count:
            row = costs.rows_within(request, row, used + bound, half_block=False)
        cursor = (request, row)
        after = costs.before(cursor)
        largest = max(largest, after - used)
        used = after
        ends.append(cursor)
    return ends, largest if used == costs.total else bound + 1


def _balanced(costs: BatchCosts, cores: int) -> list[Cursor]:
    low = max(costs.peak, -(-costs.total // cores))
    # Greedy filling under this bound leaves at least total / cores on every full core.
    high = max(low, -(-costs.total // cores) + costs.peak - 1)
    probe = low
    best: list[Cursor] = []
    while low < high or not best:
        ends, largest = _bounded(costs, cores, probe)
        if largest <= probe:
            best, high = ends, largest
        else:
            low = probe + 1
        probe = (low + high) >> 1
    return best


def split_rows(spec: PlanSpec, query_lens: Sequence[int], seq_lens: Sequence[int]) -> list[Cursor]:
    """Return the end cursor of every enabled core; the last one is (B, 0)."""
    costs = BatchCosts(cost_model(spec), query_lens, seq_lens)
    if costs.total == 0:
        return [(costs.count, 0)]
    policy = _balanced if spec.policy else _upstream
    ends = policy(costs, spec.logical_cores)
    # Requests without cost at the end belong to the last core.
    ends[-1] = (costs.count, 0)
    return ends


def largest_block_count(
    spec: PlanSpec, query_lens: Sequence[int], seq_lens: Sequence[int], ends: Sequence[Cursor]
) -> int:
    """Return the KV blocks of the core that has most, which paired cores hand-shake by."""
    blocks = BatchCosts(SasCosts(spec, blocks=True), query_lens, seq_lens)
    totals = [0, *(blocks.before(end) for end in ends)]
    return max(after - before for before, after in itertools.pairwise(totals))
