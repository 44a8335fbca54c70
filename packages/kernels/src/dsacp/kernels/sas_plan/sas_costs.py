"""Row costs of sparse attention: a window part and a compressed part (upstream U5, U6)."""

from dsacp.kernels.sas_plan.costs import PlanSpec, RequestCosts, floor_sum

UNCAPPED = 1 << 62
LANES = 64


class SasCosts:
    """One row a query token. ``blocks=True`` counts KV blocks instead (word 8 of paired records).

    A row is known by its ``end``: one past the last key that its window would reach if there were
    no last key. Costs of all rows up to an end do not depend on the query length.
    """

    def __init__(self, spec: PlanSpec, blocks: bool = False) -> None:
        self.block = 128 if spec.family else 512
        # 64-head rows of an A5 window or C128 plan hold 64 // heads tokens, which is one.
        self.per_block = 1 if blocks else 6 * -(-spec.num_heads // 16)
        self.per_lane = 0 if blocks else 10
        self.span = spec.window_left + spec.window_right + 1
        self.reach = spec.window_right
        self.ratio = spec.cmp_ratio
        self.cap = spec.cmp_topk * self.ratio if spec.cmp_topk > 0 else UNCAPPED
        self.window_sum = self._sum(self.span, 1)
        self.window_cost = self._cost(self.span)
        if self.cap < UNCAPPED:
            self.cap_sum, self.cap_cost = self._sum(self.cap, self.ratio), self._cost(spec.cmp_topk)

    def rows(self, query_len: int) -> int:
        """Rows of the request."""
        return query_len

    def _cost(self, tokens: int) -> int:
        return self.per_block * -(-tokens // self.block) - self.per_lane * (-tokens // LANES)

    def _sum(self, count: int, ratio: int) -> int:
        """Sum of the costs of ``n // ratio`` tokens over ``n = 1..count``."""
        block, before = self.block, 1 - ratio + count
        return self.per_block * floor_sum(
            before + ratio * block, ratio * block
        ) + self.per_lane * floor_sum(before + ratio * LANES, ratio * LANES)

    def _until(self, seq_len: int, end: int) -> int:
        """Cost of all rows of a request up to an end, counted from an end of 1."""
        if end <= 0:
            return 0
        span = self.span
        if end <= span and end <= seq_len:
            total = self._sum(end, 1)
        elif end <= seq_len:
            total = self.window_sum + (end - span) * self.window_cost
        else:
            total = self._clipped(seq_len, end)
        if self.ratio > 1:
            if end > self.cap <= seq_len:
                total += self.cap_sum + (end - self.cap) * self.cap_cost
            elif end <= seq_len:
                total += self._sum(end, self.ratio)
            else:
                flat = min(self.cap, seq_len)
                total += self._sum(flat, self.ratio)
                total += (end - flat) * self._cost(flat // self.ratio)
        return total

    def _clipped(self, seq_len: int, end: int) -> int:
        """Window part where the window reaches past the last key."""
        rising = min(seq_len, self.span)
        falling = max(end - max(seq_len, self.span), 0)
        top, at = self._sum(rising, 1), self._cost(rising)
        total = top + (end - rising - falling) * at
        if falling:
            # Past the last key the window only loses keys on its left.
            total += top - at - self._sum(rising - 1 - falling, 1)
        return total

    def prefix(self, query_len: int, seq_len: int, row: int) -> int:
        """Cost of all rows before ``row``."""
        first = seq_len - query_len + self.reach
        cost = self._until(seq_len, first + row)
        return cost - self._until(seq_len, first) if first > 0 else cost

    def _visible(self, seq_len: int, end: int) -> tuple[int, int]:
        """Window and compressed tokens of the row of an end."""
        if end <= 0:
            return 0, 0
        stop = end if end < seq_len else seq_len
        window = stop - end + self.span if end > self.span else stop
        if self.ratio == 1:
            return window, 0
        return window, (stop if stop < self.cap else self.cap) // self.ratio

    def _tail(self, window: int, compressed: int) -> int:
        tokens = compressed or window
        if tokens == 0:
            return 0
        return self.per_block - self.per_lane * (-((tokens - 1) % self.block + 1) // LANES)

    def last(self, query_len: int, seq_len: int, row: int) -> int:
        """Cost of the last KV block of ``row``; 0 for a row that sees nothing."""
        return self._tail(*self._visible(seq_len, seq_len - query_len + self.reach + row + 1))

    def request(self, query_len: int, seq_len: int) -> RequestCosts:
        """Costs of the whole request."""
        end = seq_len + self.reach
        window, compressed = self._visible(seq_len, end)
        cost, tail = self._cost(window), self._tail(window, compressed)
        if compressed:
            cost += self._cost(compressed)
        if query_len == 1:
            return RequestCosts(cost, tail, cost)
        total = self.prefix(query_len, seq_len, query_len)
        if self.reach:
            # The window grows until it is whole and every key is in reach, then shrinks.
            peak_end = max(min(max(seq_len, self.span), end), end - query_len + 1)
            window, compressed = self._visible(seq_len, peak_end)
            cost = self._cost(window) + self._cost(compressed)
        return RequestCosts(total, tail, cost)
