"""The two splits of query rows over cores: upstream's greedy and the minimum-maximum one.

Both walk cursors (request, row). Costs before a cursor are one look-up plus a closed form, so a
core needs one binary search over the requests and one over the rows of one request.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from dsacp.kernels.sas_plan.costs import CostModel, PlanSpec
from dsacp.kernels.sas_plan.qli_costs import QliCosts
from dsacp.kernels.sas_plan.sas_costs import SasCosts

Cursor = tuple[int, int]


class BatchCosts:
    """Cost prefixes of one batch.

    Attributes:
        starts: cost before each request, and the total at index B.
        keys: cost up to which a core must be allowed to swallow each request: its end, less half
            of its last KV block (upstream U7).
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
        self._known: dict[Cursor, int] = {}
        total = half = peak = 0
        for query_len, seq_len in zip(query_lens, seq_lens, strict=True):
            if query_len > 0 and seq_len > 0:
                cost, last, largest = model.request(query_len, seq_len)
                if cost:
                    total += cost
                    # A request without cost keeps the key before it: keys stay monotone and it
                    # is swallowed together with its predecessor.
                    half = last >> 1
                    peak = max(peak, largest)
            self.starts.append(total)
            self.keys.append(total - half)
        self.total = total
        self.peak = peak

    def before(self, cursor: Cursor) -> int:
        """Cost of all rows before a cursor."""
        request, row = cursor
        if row == 0:
            return self.starts[request]
        cost = self._known.get(cursor)
        if cost is None:
            query_len, seq_len = self.query_lens[request], self.seq_lens[request]
            cost = self.starts[request] + self.model.prefix(query_len, seq_len, row)
            # Searches and probes ask for the same few rows again and again.
            self._known[cursor] = cost
        return cost

    def rows_within(self, request: int, row: int, limit: int, half_block: bool) -> int:
        """First row from ``row`` on that a core may not take when costs may reach ``limit``.

        The request as a whole does not fit. With ``half_block`` a row may exceed the limit by
        half of its last KV block.
        """
        query_len, seq_len = self.query_lens[request], self.seq_lens[request]
        low, high = row, self.model.rows(query_len) - 1
        if low >= high:
            return low
        low_cost, high_cost = self.before((request, low)), self.starts[request + 1]
        halve = False
        while low < high:
            middle = (low + high) >> 1
            if not halve and high_cost > low_cost:
                # Rows of a request cost nearly the same: a straight line hits within a row or two.
                guess = low + (limit - low_cost) * (high + 1 - low) // (high_cost - low_cost)
                middle = min(max(guess, low), high - 1)
            end = cost = self.before((request, middle + 1))
            if half_block:
                cost -= self.model.last(query_len, seq_len, middle) >> 1
            if cost <= limit:
                halve, low, low_cost = middle + 1 - low < high - middle - 1, middle + 1, end
            else:
                halve, high, high_cost = high - middle < middle - low, middle, end
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


def _bounded(costs: BatchCosts, cores: int, bound: int) -> tuple[list[Cursor], int, int]:
    """Fill every core up to ``bound``.

    Returns the ends, the largest cost of a core, and the least bound that moves an end; the first
    is empty when the cores do not hold the batch.
    """
    ends: list[Cursor] = []
    used = largest = request = row = 0
    better = costs.total
    while used < costs.total:
        if len(ends) == cores:
            return [], 0, better
        limit = used + bound
        after = bisect_right(costs.starts, limit, request + 1) - 1
        if after > request:
            request, row = after, 0
        if request < costs.count:
            row = costs.rows_within(request, row, limit, half_block=False)
            rows = costs.model.rows(costs.query_lens[request])
            following = (request, row + 1) if row + 1 < rows else (request + 1, 0)
            better = min(better, costs.before(following) - used)
        ends.append((request, row))
        before, used = used, costs.before((request, row))
        largest = max(largest, used - before)
    return ends, largest, better


def _balanced(costs: BatchCosts, cores: int) -> list[Cursor]:
    share = -(-costs.total // cores)
    low = max(costs.peak, share)
    # Filled under this bound, every core but the last holds its share or more.
    high = max(low, share + costs.peak - 1)
    best: list[Cursor] = []
    probe = low
    while low < high or not best:
        ends, largest, better = _bounded(costs, cores, probe)
        if ends:
            best, high = ends, largest
            probe = (low + high) >> 1
        else:
            low = max(probe + 1, better)
            probe = low if low - probe > (high - low) >> 2 else (low + high) >> 1
    return best


def cost_model(spec: PlanSpec) -> CostModel:
    """Return the costs that ``spec`` plans by."""
    return QliCosts(spec) if spec.kind else SasCosts(spec)


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
    return max(after - before for before, after in pairwise(totals))
