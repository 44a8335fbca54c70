"""The integers of a ``draft_steps`` call, as one list that an operator can take."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass

from torch import Tensor


@dataclass(frozen=True)
class StepNumbers:
    """See ``draft_steps``; lists became tuples, so that equal calls share a launch plan."""

    block_sizes: tuple[int, ...]
    row_counts: tuple[int, ...]
    token_counts: tuple[int, ...]
    first_step: int
    tp_size: int
    tp_rank: int
    pad_query_len: int
    max_model_len: int
    saturate: bool
    repeat_padding: bool
    causal: bool

    def split(self, tables: Sequence[Tensor]) -> tuple[Sequence[Tensor], ...]:
        """Return block, cos and sin tables, which an operator takes as one list."""
        groups = len(self.block_sizes)
        middle = (groups + len(tables)) // 2
        return tables[:groups], tables[groups:middle], tables[middle:]

    def pack(self) -> tuple[int, ...]:
        """Return counts of groups and steps, then every field in order."""
        lists = (*self.block_sizes, *self.row_counts, *self.token_counts)
        scalars = astuple(self)[3:]
        return (len(self.block_sizes), len(self.row_counts), *lists, *map(int, scalars))

    @classmethod
    def unpack(cls, words: Sequence[int]) -> "StepNumbers":
        """Undo ``pack``."""
        groups, steps = words[:2]
        rows_at, tokens_at, rest = 2 + groups, 2 + groups + steps, 2 + groups + 2 * steps
        first_step, tp_size, tp_rank, pad_query_len, max_model_len, *flags = words[rest:]
        saturate, repeat_padding, causal = map(bool, flags)
        return cls(
            tuple(words[2:rows_at]),
            tuple(words[rows_at:tokens_at]),
            tuple(words[tokens_at:rest]),
            first_step,
            tp_size,
            tp_rank,
            pad_query_len,
            max_model_len,
            saturate,
            repeat_padding,
            causal,
        )


def smallest_table(block_tables: Sequence[Tensor]) -> int:
    """Return the rows that every block table has: requests past them have no slot in any group."""
    return min([table.shape[0] for table in block_tables], default=0)
