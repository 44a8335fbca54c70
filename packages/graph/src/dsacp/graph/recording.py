"""Whether a graph is being captured here, where nothing may wait or allocate for longer."""

import torch

from dsacp.graph.tape import recording


def is_recording(device: torch.device) -> bool:
    """Tell whether a CPU tape records on this thread, or the device's library captures a stream."""
    ask = getattr(getattr(torch, device.type, None), "is_current_stream_capturing", None)
    return recording() or (ask is not None and bool(ask()))
