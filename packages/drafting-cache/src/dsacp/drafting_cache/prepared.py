"""What a shape needs that no batch changes."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from dsacp.core import Uncopied
from dsacp.drafting_cache.types import StepMetadata


@dataclass(frozen=True)
class Prepared(Uncopied):
    """Everything about a shape that no batch changes: made once, because eager hosts are slow.

    Attributes:
        fields: the checked launch of all fields.
        plans: the work splits to plan, or None.
        views: metadata of each step.
        extents: rows and padded tokens that the launches write in each step.
        compresses: whether a step needs compressed rows.
    """

    fields: Callable[[], None]
    plans: Tensor | None
    views: tuple[StepMetadata, ...]
    extents: tuple[tuple[int, int], ...]
    compresses: bool
