"""What buffers hold: no leftover poison (I2) and inert padding (I4)."""

from collections.abc import Mapping

import torch
from torch import Tensor

from dsacp.core import LayoutError, PaddingError, StaleValueError
from dsacp.graph.guard.words import POISON_WORD

_POISON = {torch.int32: POISON_WORD, torch.int64: POISON_WORD << 32 | POISON_WORD}


def check_fresh(label: str, tensor: Tensor) -> None:
    """Raise ``StaleValueError`` if poison is left in a tensor; waits for the device.

    Raises:
        LayoutError: the dtype cannot tell poison from data.
    """
    if tensor.is_floating_point():
        stale = torch.isnan(tensor)
    elif tensor.dtype in _POISON:
        stale = tensor == _POISON[tensor.dtype]
    else:
        raise LayoutError(
            f"expected {label} as a float, int32 or int64 tensor, found {tensor.dtype}: poison "
            "cannot be told from data in it"
        )
    left = stale.flatten().nonzero()
    if left.numel():
        first = int(left[0])
        raise StaleValueError(
            f"expected every entry of {label} rewritten since the poison, found {left.numel()} of "
            f"{tensor.numel()} untouched, the first at entry {first} "
            f"({tensor.flatten()[first].item()}): write the field before the replay that reads it"
        )


def check_padding(
    label: str, name: str, tensor: Tensor, expected: Mapping[str, float | Tensor]
) -> None:
    """Raise ``PaddingError`` if an entry differs from the inert value; waits for the device.

    Raises:
        LayoutError: ``expected`` has no value for the field.
    """
    if name not in expected:
        raise LayoutError(
            f"expected an inert value for {name}, found values for {sorted(expected)}: add it"
        )
    want = torch.as_tensor(expected[name], dtype=tensor.dtype, device=tensor.device)
    want = want.expand_as(tensor)
    wrong = (tensor != want).flatten().nonzero()
    if wrong.numel():
        first = int(wrong[0])
        raise PaddingError(
            f"expected inert padding {want.flatten()[first].item()} in {label}, found "
            f"{tensor.flatten()[first].item()} at padded entry {first}, {wrong.numel()} of "
            f"{tensor.numel()} wrong: clean the tail when a batch shrinks"
        )
