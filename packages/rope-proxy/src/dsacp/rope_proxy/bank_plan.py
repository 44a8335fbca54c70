"""Where every RoPE bank lies in their one storage: integers only."""

from dataclasses import dataclass

from torch import Tensor

from dsacp.core import CapacityError, round_up
from dsacp.rope_proxy.table import RopeConfig

ALIGN_WORDS = 16
"""Banks start on 64 bytes; the guard before a bank grows to meet that."""

FIELDS = (("cos", 1.0), ("sin", 0.0))
"""The fields of a bank, with the value that leaves a head unrotated."""


@dataclass(frozen=True)
class BankField:
    """One field of one bank: ``tokens x width`` words at ``offset``, then ``guard`` words."""

    config: int
    step: int
    name: str
    fill: float
    offset: int
    tokens: int
    width: int
    guard: int

    def view(self, storage: Tensor) -> Tensor:
        """Return the field as a [tokens, width] view of ``storage``."""
        size = self.tokens * self.width
        return storage[self.offset : self.offset + size].view(self.tokens, self.width)


def plan_banks(
    configs: tuple[RopeConfig, ...], tokens: list[int], guard_words: int
) -> tuple[tuple[BankField, ...], int]:
    """Lay every field out one after the other.

    Args:
        configs: the configurations, each with its own banks.
        tokens: rows of each draft step.
        guard_words: words that lie before, between and after the fields, at least.

    Returns:
        The fields and the words of the whole storage.

    Raises:
        CapacityError: the storage outgrows 32-bit word offsets.
    """
    fields: list[BankField] = []
    cursor = round_up(guard_words, ALIGN_WORDS)
    for index, config in enumerate(configs):
        for step, rows in enumerate(tokens):
            for name, fill in FIELDS:
                end = cursor + rows * config.rotary_dim
                following = round_up(end + guard_words, ALIGN_WORDS)
                fields.append(
                    BankField(
                        index, step, name, fill, cursor, rows, config.rotary_dim, following - end
                    )
                )
                cursor = following
    if cursor >= 2**31:
        raise CapacityError(
            f"the RoPE banks need {cursor} words, 32-bit offsets reach {2**31 - 1}: lower "
            "max_num_batched_tokens"
        )
    return tuple(fields), cursor
