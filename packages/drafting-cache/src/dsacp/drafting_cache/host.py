"""Host inputs: checked, and brought to the device without making the host wait."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from dsacp.core import LayoutError
from dsacp.drafting_cache.types import BoundInputs, DraftBatch, GroupSpec


class PinnedRing:
    """Pinned slots for batches that live on the host, reused once their copy has run.

    The caller may overwrite its own buffers as soon as ``to_device`` returns (vllm-ascend #10763):
    the values already lie in a slot, and a slot is rewritten only after its event.
    """

    def __init__(self, max_reqs: int, device: torch.device, slots: int = 4) -> None:
        words = 3 * max_reqs + 1
        self._slots = [torch.empty(words, dtype=torch.int32, pin_memory=True) for _ in range(slots)]
        self._device = [torch.empty(words, dtype=torch.int32, device=device) for _ in range(slots)]
        self._events = [torch.Event(device=device) for _ in range(slots)]
        self._next = 0

    def to_device(self, batch: DraftBatch) -> DraftBatch:
        """Return the batch with device tensors, filled by one asynchronous copy."""
        index, self._next = self._next, (self._next + 1) % len(self._slots)
        self._events[index].synchronize()
        count, slot, target = batch.num_reqs, self._slots[index], self._device[index]
        parts = [batch.query_start_loc[: count + 1], batch.seq_lens[:count]]
        if batch.num_rejected is not None:
            parts.append(batch.num_rejected[:count])
        words = sum(part.numel() for part in parts)
        torch.cat(parts, out=slot[:words])
        target[:words].copy_(slot[:words], non_blocking=True)
        self._events[index].record()
        rejected = None if batch.num_rejected is None else target[2 * count + 1 : words]
        return replace(
            batch,
            query_start_loc=target[: count + 1],
            seq_lens=target[count + 1 : 2 * count + 1],
            num_rejected=rejected,
        )


def check_block_tables(
    groups: tuple[GroupSpec, ...], tables: Mapping[str, Tensor], device: torch.device
) -> None:
    """Raise ``LayoutError`` unless every group has an int32 table that rows can be read from."""
    missing = [group.name for group in groups if group.name not in tables]
    if missing:
        raise LayoutError(
            f"expected a block table for each of {[group.name for group in groups]}, found none "
            f"for {missing}: bind the group's own table, another group's would read foreign KV"
        )
    for group in groups:
        table = tables[group.name]
        if table.dtype is not torch.int32 or table.dim() != 2 or table.stride(1) != 1:
            raise LayoutError(
                f"expected the block table of {group.name!r} as 2-D int32 with unit column "
                f"stride, found {table.dtype} {tuple(table.shape)} strides {table.stride()}"
            )
        if table.device.type != device.type:
            raise LayoutError(
                f"expected the block table of {group.name!r} on {device}, found {table.device}"
            )


def check_inputs(inputs: BoundInputs, max_reqs: int) -> None:
    """Raise ``LayoutError`` unless bound inputs are int32 and hold every padded row."""
    sizes = {
        "query_start_loc": max_reqs + 1,
        "seq_lens": max_reqs,
        "num_rejected": max_reqs,
        "num_reqs": 1,
    }
    for name, size in sizes.items():
        tensor: Tensor = getattr(inputs, name)
        if tensor.dtype is not torch.int32 or tensor.numel() < size:
            raise LayoutError(
                f"expected bound {name} as int32 of at least {size} entries, found "
                f"{tensor.dtype} of {tensor.numel()}: pass the host's whole persistent buffer"
            )
