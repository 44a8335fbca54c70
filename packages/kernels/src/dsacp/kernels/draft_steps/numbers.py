"""The integers of a ``draft_steps`` call, as one list that an operator can take."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass

from torch import Tensor


@dataclass(frozen=True)
class StepNumbers:
    """See ``draft_steps``; lists became tuples, so that equal calls share a launch plan.

    No ``start_counts`` are the row counts.
    """

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
    start_counts: tuple[int, ...] = ()

    @property
    def starts_to(self) -> tuple[int, ...]:
        """Rows of each step through which its query starts are written."""
        return self.start_counts or self.row_counts

    def split(self, tables: Sequence[Tensor]) -> tuple[Sequence[Tensor], ...]:
        """Return block, cos and sin tables, which an operator takes as one list."""
        groups = len(self.block_sizes)
        middle = (groups + len(tables)) // 2
        return tables[:groups], tables[groups:middle], tables[middle:]

    def pack(self) -> tuple[int, ...]:
        """Return counts of groups and steps, then every field in order."""
        lists = (*self.block_sizes, *self.row_counts, *self.token_counts)
        scalars = astuple(self)[3:-1]
        counts = (len(self.block_sizes), len(self.row_counts))
        return (*counts, *lists, *map(int, scalars), *self.start_counts)

    @classmethod
    def unpack(cls, words: Sequence[int]) -> "StepNumbers":
        """Undo ``pack``."""
        groups, steps = words[:2]
        rows_at, tokens_at, rest = 2 + groups, 2 + groups + steps, 2 + groups + 2 * steps
        starts_at = rest + 8
        first_step, tp_size, tp_rank, pad_query_len, max_model_len, *flags = words[rest:starts_at]
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
            tuple(words[starts_at:]),
        )


def smallest_table(block_tables: Sequence[Tensor]) -> int:
    """Return the rows that every block table has: requests past them have no slot in any group."""
    return min([table.shape[0] for table in block_tables], default=0)
