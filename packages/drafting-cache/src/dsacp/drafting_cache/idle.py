"""An idle batch, staged where nothing records it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import _disable_current_modes

from dsacp.drafting_cache.types import DraftBatch


def idle_batch(device: torch.device) -> DraftBatch:
    """Return a batch of no requests, on the device: host tensors would take a pinned slot."""
    zero = torch.zeros(1, dtype=torch.int32, device=device)
    return DraftBatch(0, 0, zero, zero)


@contextmanager
def unrecorded(device: torch.device) -> Iterator[bool]:
    """Keep what runs inside off a CPU tape; yields False under a device's capture.

    There a launch would be recorded whatever the host does, but nothing runs either, and the
    warm-up run before it has staged what it needs.
    """
    ask = getattr(getattr(torch, device.type, None), "is_current_stream_capturing", None)
    if ask is not None and ask():
        yield False
        return
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield True
