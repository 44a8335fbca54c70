"""What a plan is made for, and what a model of its row costs answers (upstream U6).

Every part of a row cost is ``weight * ((n + offset) // divisor)`` of a token count ``n``: a full
block costs as much as its tail formula gives for a full tail, so block counts and tail units need
no case of their own. Sums of such terms over consecutive ``n`` are one division each, so that any
range of rows has a closed form.
"""

from typing import NamedTuple, Protocol


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
        """Whether two cores share a range, 64 heads each (upstream U4)."""
        return self.kind == 0 and self.family == 1 and self.num_heads == 128

    @property
    def logical_cores(self) -> int:
        """Row ranges that the plan has at most."""
        return self.num_cores // 2 if self.paired else self.num_cores

    @property
    def record_size(self) -> int:
        """Words of one core's record."""
        return 9 if self.kind == 0 and self.family == 1 else 8


class RequestCosts(NamedTuple):
    """Cost of a request, of the last KV block of its last row, and of its costliest row."""

    total: int
    last: int
    peak: int


class CostModel(Protocol):
    """Costs of a request's rows; ``query_len`` and ``seq_len`` are both positive."""

    def rows(self, query_len: int) -> int:
        """Rows of the request."""
        ...

    def request(self, query_len: int, seq_len: int) -> RequestCosts:
        """Costs of the whole request; all 0 when it sees nothing."""
        ...

    def prefix(self, query_len: int, seq_len: int, row: int) -> int:
        """Cost of all rows before ``row``."""
        ...

    def last(self, query_len: int, seq_len: int, row: int) -> int:
        """Cost of the last KV block of ``row``; 0 for a row that sees nothing."""
        ...


def floor_sum(count: int, divisor: int) -> int:
    """Sum of ``j // divisor`` over ``j = 0..count-1``, for ``count >= 0``."""
    quotient = count // divisor
    return quotient * count - (divisor * quotient * (quotient + 1) >> 1)
