"""A plan at one address for the life of a graph."""

import torch
from torch import Tensor

from dsacp.core import CapacityError, LayoutError, Uncopied
from dsacp.sas_metadata.plan import SAS_METADATA_SIZE


class SasHolder(Uncopied):
    """Persistent int32 [1024] words that a captured graph reads (invariant I1).

    Attributes:
        words: int32 [1024]; the same storage for ever, contents are replaced.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.words = torch.zeros(SAS_METADATA_SIZE, dtype=torch.int32, device=device)

    def update(self, words: Tensor) -> Tensor:
        """Copy a plan made elsewhere, on the current stream.

        A tensor shorter than 1024 words (a profile run makes such) is copied by its own size; the
        words after it become 0, so that no record of an older plan stays enabled.

        Returns:
            The holder's own words.

        Raises:
            LayoutError: ``words`` is not 1-D int32.
            CapacityError: ``words`` is longer than the holder.
        """
        if words.dtype is not torch.int32 or words.dim() != 1:
            raise LayoutError(
                f"expected words as 1-D int32, found {words.dtype} of shape {tuple(words.shape)}"
            )
        size = words.numel()
        if size > SAS_METADATA_SIZE:
            raise CapacityError(
                f"found {size} words, the holder has {SAS_METADATA_SIZE}: pass one plan"
            )
        self.words[:size].copy_(words)
        if size < SAS_METADATA_SIZE:
            self.words[size:].zero_()
        return self.words
