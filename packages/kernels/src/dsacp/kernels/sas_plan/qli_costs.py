"""Row costs of the lightning indexer: four query tokens a row, compressed keys (upstream U13)."""

from dsacp.kernels.sas_plan.costs import PlanSpec, RequestCosts, floor_sum

TOKENS = 4
Term = tuple[int, int, int]
"""(weight, offset, divisor) of one ``weight * ((n + offset) // divisor)``, powers of two."""


class QliCosts:
    """A row is known by its query tokens (the last row may have fewer) and its ``end``.

    The end is one past the last key of the row's last token, and at least 1.
    """

    def __init__(self, spec: PlanSpec) -> None:
        self.ratio = spec.cmp_ratio
        self.block = 128 if spec.family else 2048
        self.terms = [self._terms(tokens, spec) for tokens in range(TOKENS + 1)]

    @staticmethod
    def _terms(tokens: int, spec: PlanSpec) -> tuple[Term, ...]:
        if spec.family:
            heads = -(-tokens * spec.num_heads // 16)
            terms: tuple[Term, ...] = ((6 * heads, 127, 128), (10, 63, 64))
        else:
            terms = ((768 * tokens, 2047, 2048), (512 * tokens, 1023, 2048), (tokens, 0, 2))
        # (n // ratio + offset) // divisor in one division of n.
        ratio = spec.cmp_ratio
        return tuple((weight, ratio * offset, ratio * divisor) for weight, offset, divisor in terms)

    def rows(self, query_len: int) -> int:
        """Rows of the request."""
        return -(-query_len // TOKENS)

    def _cost(self, tokens: int, end: int) -> int:
        cost = 0
        for weight, offset, divisor in self.terms[tokens]:
            cost += weight * ((end + offset) // divisor)
        return cost

    def _row(self, query_len: int, seq_len: int, row: int) -> tuple[int, int]:
        last = min(TOKENS * (row + 1), query_len)
        return last - TOKENS * row, max(last + seq_len - query_len, 1)

    def prefix(self, query_len: int, seq_len: int, row: int) -> int:
        """Cost of all rows before ``row``."""
        if seq_len < self.ratio:
            return 0
        whole = min(row, query_len // TOKENS)
        total = 0
        if whole:
            shift = seq_len - query_len
            outside = min(max(-shift // TOKENS, 0), whole)
            if outside:
                total = outside * self._cost(TOKENS, 1)
            for weight, offset, divisor in self.terms[TOKENS]:
                total += weight * _row_floors(shift + offset, divisor, outside, whole)
        if row > whole:
            total += self._cost(*self._row(query_len, seq_len, whole))
        return total

    def _tail(self, tokens: int, end: int) -> int:
        keys = end // self.ratio
        return self._cost(tokens, ((keys - 1) % self.block + 1) * self.ratio) if keys else 0

    def last(self, query_len: int, seq_len: int, row: int) -> int:
        """Cost of the last KV block of ``row``; 0 for a row that sees nothing."""
        return self._tail(*self._row(query_len, seq_len, row))

    def request(self, query_len: int, seq_len: int) -> RequestCosts:
        """Costs of the whole request."""
        if seq_len < self.ratio:
            return RequestCosts(0, 0, 0)
        rows = -(-query_len // TOKENS)
        tokens = query_len - TOKENS * (rows - 1)
        cost = self._cost(tokens, seq_len)
        tail = self._tail(tokens, seq_len)
        if rows == 1:
            return RequestCosts(cost, tail, cost)
        # A short last row may cost less than the whole row before it.
        peak = max(cost, self._cost(*self._row(query_len, seq_len, rows - 2)))
        return RequestCosts(self.prefix(query_len, seq_len, rows), tail, peak)


def _row_floors(base: int, divisor: int, start: int, stop: int) -> int:
    """Sum of ``(4 * y + base) // divisor`` over ``y = start+1..stop``."""
    if divisor < TOKENS:
        triangle = stop * (stop + 1) - start * (start + 1) >> 1
        return TOKENS // divisor * triangle + (stop - start) * (base // divisor)
    base, divisor = base // TOKENS, divisor // TOKENS
    return floor_sum(base + stop + 1, divisor) - floor_sum(base + start + 1, divisor)
