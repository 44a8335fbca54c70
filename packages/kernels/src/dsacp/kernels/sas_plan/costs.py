"""Cost of query rows in closed form: sums over any range of rows without a loop (spec ascend 1.6).

Every part of a row cost is ``weight * ((n + offset) // divisor)`` of a token count ``n``: a full
block costs as much as its tail formula gives for a full tail, so block counts and tail units need
no case of their own. Sums of such terms over consecutive ``n`` are two divisions each.
"""

from typing import NamedTuple, Protocol

Term = tuple[int, int, int]
"""(weight, offset, divisor) of one ``weight * ((n + offset) // divisor)``."""

UNCAPPED = 1 << 62
QLI_ROW_TOKENS = 4


class PlanSpec(NamedTuple):
    """Columns 4..12 of a plan row: what is planned, and for which device."""

    kind: int
    num_heads: int
    family: int
    num_cores: int
    window_left: int
    window_right: int
    cmp_ratio: int
    cmp_topk: int
    policy: int

    @property
    def paired(self) -> bool:
        """Whether two cores share a range, 64 heads each (spec ascend 1.4)."""
        return self.kind == 0 and self.family == 1 and self.num_heads == 128

    @property
    def logical_cores(self) -> int:
        """Row ranges that the plan has at most."""
        return self.num_cores // 2 if self.paired else self.num_cores

    @property
    def record_size(self) -> int:
        """Words of one core's record."""
        return 9 if self.kind == 0 and self.family == 1 else 8


class CostModel(Protocol):
    """Costs of a request's rows; ``query_len`` and ``seq_len`` are both positive."""

    def rows(self, query_len: int) -> int:
        """Rows of the request."""
        ...

    def prefix(self, query_len: int, seq_len: int, row: int) -> int:
        """Cost of all rows before ``row``."""
        ...

    def last(self, query_len: int, seq_len: int, row: int) -> int:
        """Cost of the last KV block of ``row``; 0 for a row that sees nothing."""
        ...

    def peak(self, query_len: int, seq_len: int) -> int:
        """Largest cost of one row."""
        ...


def term_sum(terms: tuple[Term, ...], count: int) -> int:
    """Sum of the terms over ``n = 1..count``; offsets lie in ``[0, divisor)``."""
    total = 0
    for weight, offset, divisor in terms:
        quotient, rest = divmod(count + offset + 1, divisor)
        total += weight * (divisor * (quotient * (quotient - 1) >> 1) + rest * quotient)
    return total


def term_value(terms: tuple[Term, ...], count: int) -> int:
    """Value of the terms at ``n = count``."""
    return sum(weight * ((count + offset) // divisor) for weight, offset, divisor in terms)


def _scaled(terms: tuple[Term, ...], ratio: int) -> tuple[Term, ...]:
    """Terms of ``n`` that equal ``terms`` at ``n // ratio``."""
    return tuple((weight, ratio * offset, ratio * divisor) for weight, offset, divisor in terms)


class SasCosts:
    """Rows of sparse attention: a window part and a compressed part, one row a query token.

    ``blocks=True`` counts KV blocks instead (word 8 of a paired record).
    """

    def __init__(self, spec: PlanSpec, blocks: bool = False) -> None:
        block = 128 if spec.family else 512
        # 64-head rows of an A5 window or C128 plan hold 64 // heads tokens, which is one.
        heads = -(-spec.num_heads // 16)
        self.head_weight, self.token_weight = (1, 0) if blocks else (6 * heads, 10)
        self.block = block
        self.span = spec.window_left + spec.window_right + 1
        self.reach = spec.window_right
        self.window: tuple[Term, ...] = (
            (self.head_weight, block - 1, block),
            (self.token_weight, 63, 64),
        )
        self.compressed = _scaled(self.window, spec.cmp_ratio) if spec.cmp_ratio > 1 else ()
        self.ratio = spec.cmp_ratio
        self.cap = spec.cmp_topk * spec.cmp_ratio if spec.cmp_topk > 0 else UNCAPPED
        self.full_window = term_sum(self.window, self.span), term_value(self.window, self.span)

    def rows(self, query_len: int) -> int:
        """Rows of the request."""
        return query_len

    def _until(self, seq_len: int, end: int) -> int:
        """Cost of all rows whose unclipped visible end is at most ``end``, from an end of 1."""
        if end <= 0:
            return 0
        rising = min(seq_len, self.span)
        if end <= rising:
            total = term_sum(self.window, end)
        else:
            whole, at = self.full_window
            if seq_len < self.span:
                whole, at = term_sum(self.window, rising), term_value(self.window, rising)
            falling = end - max(seq_len, self.span)
            total = whole + (end - rising - max(falling, 0)) * at
            if falling > 0:
                # Past the last key the window only loses keys on its left.
                total += whole - at - term_sum(self.window, rising - 1 - falling)
        if self.compressed:
            flat = min(seq_len, self.cap)
            total += term_sum(self.compressed, min(end, flat))
            if end > flat:
                total += (end - flat) * term_value(self.compressed, flat)
        return total

    def prefix(self, query_len: int, seq_len: int, row: int) -> int:
        """Cost of all rows before ``row``."""
        first = seq_len - query_len + self.reach
        cost = self._until(seq_len, first + row)
        return cost - self._until(seq_len, first) if first > 0 else cost

    def _visible(self, seq_len: int, end: int) -> tuple[int, int]:
        """Window and compressed tokens of the row whose unclipped visible end is ``end``."""
        if end <= 0:
            return 0, 0
        window = min(end, seq_len) - max(end - self.span, 0)
        return window, min(end, seq_len, self.cap) // self.ratio if self.compressed else 0

    def last(self, query_len: int, seq_len: int, row: int) -> int:
        """Cost of the last KV block of ``row``; 0 for a row that sees nothing."""
        window, compressed = self._visible(seq_len, seq_len - query_len + self.reach + row + 1)
        tokens = compressed or window
        if tokens == 0:
            return 0
        tail = (tokens - 1) % self.block + 1
        return self.head_weight - self.token_weight * (-tail // 64)

    def peak(self, query_len: int, seq_len: int) -> int:
        """Largest cost of one row."""
        last_end = seq_len + self.reach
        # The window grows until it is whole and every key is in reach, then shrinks.
        end = max(min(max(seq_len, self.span), last_end), last_end - query_len + 1)
        window, compressed = self._visible(seq_len, end)
        return term_value(self.window, window) + term_value(self.window, compressed)


class QliCosts:
    """Rows of the lightning indexer: four query tokens a row, compressed keys only."""

    def __init__(self, spec: PlanSpec) -> None:
        self.ratio = spec.cmp_ratio
        self.block = 128 if spec.family else 2048
        self.terms = tuple(self._terms(tokens, spec) for tokens in range(QLI_ROW_TOKENS + 1))

    @staticmethod
    def _terms(tokens: int, spec: PlanSpec) -> tuple[Term, ...]:
        if spec.family:
            heads = 6 * -(-tokens * spec.num_heads // 16)
            return _scaled(((heads, 127, 128), (10, 63, 64)), spec.cmp_ratio)
        per_key = ((768 * tokens, 2047, 2048), (512 * tokens, 1023, 2048), (tokens, 0, 2))
        return _scaled(per_key, spec.cmp_ratio)

    def rows(self, query_len: int) -> int:
        """Rows of the request."""
        return -(-query_len // QLI_ROW_TOKENS)

    def _whole(self, query_len: int, seq_len: int, row: int) -> int:
        """Cost of the first ``row`` rows, all of four tokens."""
        shift = seq_len - query_len
        outside = min(max(-shift // QLI_ROW_TOKENS, 0), row)
        total = outside * term_value(self.terms[QLI_ROW_TOKENS], 1) if self.ratio == 1 else 0
        for weight, offset, divisor in self.terms[QLI_ROW_TOKENS]:
            total += weight * _row_floors(shift + offset, divisor, outside, row)
        return total

    def _keys(self, query_len: int, seq_len: int, row: int) -> tuple[int, int]:
        """Query tokens of ``row`` and visible end of its last token."""
        last = min(QLI_ROW_TOKENS * (row + 1), query_len)
        return last - QLI_ROW_TOKENS * row, max(last + seq_len - query_len, 1)

    def _cost(self, query_len: int, seq_len: int, row: int) -> int:
        tokens, end = self._keys(query_len, seq_len, row)
        return term_value(self.terms[tokens], end)

    def prefix(self, query_len: int, seq_len: int, row: int) -> int:
        """Cost of all rows before ``row``."""
        if seq_len < self.ratio:
            return 0
        whole = min(row, query_len // QLI_ROW_TOKENS)
        total = self._whole(query_len, seq_len, whole)
        return total + self._cost(query_len, seq_len, whole) if row > whole else total

    def last(self, query_len: int, seq_len: int, row: int) -> int:
        """Cost of the last KV block of ``row``; 0 for a row that sees nothing."""
        tokens, end = self._keys(query_len, seq_len, row)
        keys = end // self.ratio
        if keys == 0:
            return 0
        tail = (keys - 1) % self.block + 1
        return term_value(self.terms[tokens], tail * self.ratio)

    def peak(self, query_len: int, seq_len: int) -> int:
        """Largest cost of one row."""
        rows = self.rows(query_len)
        # A short last row may cost less than the whole row before it.
        return max(self._cost(query_len, seq_len, row) for row in range(max(rows - 2, 0), rows))


def _row_floors(base: int, divisor: int, start: int, stop: int) -> int:
    """Sum of ``(4 * y + base) // divisor`` over ``y = start+1..stop``; powers of two only."""
    if divisor < QLI_ROW_TOKENS:
        triangle = stop * (stop + 1) - start * (start + 1) >> 1
        return QLI_ROW_TOKENS // divisor * triangle + (stop - start) * (base // divisor)
    base, divisor = base // QLI_ROW_TOKENS, divisor // QLI_ROW_TOKENS
    return _floors(base + stop, divisor) - _floors(base + start, divisor)


def _floors(count: int, divisor: int) -> int:
    """Sum of ``j // divisor`` over ``j = 0..count``, for ``count >= -1``."""
    quotient, rest = divmod(count + 1, divisor)
    return divisor * (quotient * (quotient - 1) >> 1) + rest * quotient


def cost_model(spec: PlanSpec) -> CostModel:
    """Return the costs that ``spec`` plans by."""
    return QliCosts(spec) if spec.kind else SasCosts(spec)
