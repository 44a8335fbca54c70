"""The slice of a step's tokens that one tensor-parallel rank attends for."""

from dataclasses import dataclass, replace

from dsacp.core.checks import MAX_TP_SIZE, check_whole


def round_up(value: int, multiple: int) -> int:
    """Return the smallest multiple of ``multiple`` that is at least ``value``."""
    return -(-value // multiple) * multiple


@dataclass(frozen=True)
class TokenShard:
    """Contiguous token range of one rank under DSA context parallelism (upstream U21).

    Args:
        num_tokens: tokens of the step, real or padded by the host, >= 0.
        tp_size: ranks that share the tokens, 1..64.
        tp_rank: this rank, ``0 <= tp_rank < tp_size``.

    Raises:
        LayoutError: if a value is no whole number, or out of its range.
    """

    num_tokens: int
    tp_size: int
    tp_rank: int

    def __post_init__(self) -> None:
        check_whole("num_tokens", self.num_tokens, 0)
        check_whole("tp_size", self.tp_size, 1, MAX_TP_SIZE)
        do = f"rank {self.tp_rank} of {self.tp_size} must be that inside the tensor-parallel group"
        check_whole("tp_rank", self.tp_rank, 0, self.tp_size - 1, do)

    @property
    def padded(self) -> int:
        """Tokens rounded up so that every rank owns the same count."""
        return round_up(self.num_tokens, self.tp_size)

    @property
    def per_rank(self) -> int:
        """Tokens of one rank, padding included."""
        return self.padded // self.tp_size

    @property
    def start(self) -> int:
        """First token of this rank."""
        return self.tp_rank * self.per_rank

    @property
    def end(self) -> int:
        """One past the last token of this rank; may exceed ``num_tokens``."""
        return self.start + self.per_rank

    @property
    def real(self) -> int:
        """Tokens of this rank that are not padding of the shard."""
        return max(min(self.end, self.num_tokens) - self.start, 0)

    def resize(self, num_tokens: int) -> "TokenShard":
        """Return the shard of the same rank for another token count."""
        return replace(self, num_tokens=num_tokens)
