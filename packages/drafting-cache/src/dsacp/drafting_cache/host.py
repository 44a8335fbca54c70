"""Host inputs: checked, and brought to the device without making the host wait."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from dsacp.core import CapacityError, LayoutError, StaleAddressError, Uncopied
from dsacp.drafting_cache.types import BoundInputs, DraftBatch, GroupSpec

OPTIONAL = ("num_rejected", "drafts")
"""Inputs of a request each that a batch need not have."""


class PinnedRing(Uncopied):
    """Pinned slots for batches that live on the host, reused once their copy has run.

    The caller may overwrite its own buffers as soon as ``to_device`` returns (vllm-ascend #10763):
    the values already lie in a slot, and a slot is rewritten only after its event.
    """

    def __init__(self, max_reqs: int, device: torch.device, slots: int = 4) -> None:
        words = 4 * max_reqs + 1
        self._slots = [torch.empty(words, dtype=torch.int32, pin_memory=True) for _ in range(slots)]
        self._device = [torch.empty(words, dtype=torch.int32, device=device) for _ in range(slots)]
        self._events = [torch.Event(device=device) for _ in range(slots)]
        self._next = 0

    def to_device(self, batch: DraftBatch) -> DraftBatch:
        """Return the batch with device tensors, filled by one asynchronous copy."""
        index, self._next = self._next, (self._next + 1) % len(self._slots)
        self._events[index].synchronize()
        count, slot, target = batch.num_reqs, self._slots[index], self._device[index]
        starts, lengths = given_inputs(batch)
        parts = [starts[: count + 1], lengths[:count]]
        given = [name for name in OPTIONAL if getattr(batch, name) is not None]
        parts += [getattr(batch, name)[:count] for name in given]
        words = (2 + len(given)) * count + 1
        torch.cat(parts, out=slot[:words])
        target[:words].copy_(slot[:words], non_blocking=True)
        self._events[index].record()
        starts, lengths, *others = target[:words].split_with_sizes(
            [count + 1, *[count] * (1 + len(given))]
        )
        named: dict[str, Any] = dict(zip(given, others, strict=True))
        return replace(batch, query_start_loc=starts, seq_lens=lengths, **named)


def check_block_tables(
    groups: tuple[GroupSpec, ...],
    tables: Mapping[str, Tensor],
    device: torch.device,
    max_model_len: int,
    rows: int,
) -> None:
    """Raise ``LayoutError`` unless every group has an int32 table of at least ``rows`` rows."""
    names = [group.name for group in groups]
    missing = [name for name in names if name not in tables]
    unknown = [name for name in tables if name not in names]
    if missing or unknown:
        raise LayoutError(
            f"expected a block table for each of {names}, found none for {missing} and unknown "
            f"groups {unknown}: bind the group's own table, another group's would read foreign KV"
        )
    for group in groups:
        table = tables[group.name]
        if not isinstance(table, Tensor):
            raise LayoutError(
                f"expected the block table of {group.name!r} as a tensor, found "
                f"{type(table).__name__}: bind the host's persistent device tensor"
            )
        if table.dtype is not torch.int32 or table.dim() != 2 or table.stride(1) != 1:
            raise LayoutError(
                f"expected the block table of {group.name!r} as 2-D int32 with unit column "
                f"stride, found {table.dtype} {tuple(table.shape)} strides {table.stride()}"
            )
        if table.device != device:
            raise LayoutError(
                f"expected the block table of {group.name!r} on {device}, found {table.device}"
            )
        if table.shape[0] < rows:
            raise LayoutError(
                f"expected a block table of {group.name!r} with at least {rows} rows, found "
                f"{table.shape[0]}: padded requests are rows of a step, and a table is never "
                "copied; give it DraftCapacity.max_reqs rows, or use padding='repeat', whose steps "
                "end where the table does"
            )
        reach = table.shape[1] * group.block_size * group.compress_ratio
        if reach < max_model_len:
            raise LayoutError(
                f"expected a block table of {group.name!r} that reaches max_model_len="
                f"{max_model_len}, found {table.shape[1]} columns of {group.block_size} rows, "
                f"{reach} tokens: bind the whole table, or lower max_model_len"
            )


def check_same(
    bound: Mapping[str, Tensor],
    tables: Mapping[str, Tensor],
    bound_inputs: BoundInputs,
    inputs: BoundInputs,
) -> None:
    """Raise ``StaleAddressError`` if a second bind differs from what graphs already read."""
    pairs = [(f"the block table of {name!r}", table, tables[name]) for name, table in bound.items()]
    for field in fields(BoundInputs):
        name = field.name
        pairs.append((f"bound {name}", getattr(bound_inputs, name), getattr(inputs, name)))
    for what, old, new in pairs:
        if old is not new and _place(old) != _place(new):
            raise StaleAddressError(
                f"expected {what} as bound before, where graphs read it, {_describe(old)}, found "
                f"{_describe(new)}: keep the host's tensor persistent, or release() and "
                "capture again"
            )


def _place(tensor: Tensor | None) -> tuple[object, ...]:
    if tensor is None:
        return ()
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _describe(tensor: object) -> str:
    if not isinstance(tensor, Tensor):
        return f"{type(tensor).__name__}"
    return f"{tensor.data_ptr():#x} of shape {tuple(tensor.shape)} strides {tensor.stride()}"


def given_inputs(batch: DraftBatch) -> tuple[Tensor, Tensor]:
    """Return starts and lengths of a batch that is staged.

    Raises:
        LayoutError: one is missing, and none are bound.
    """
    starts, lengths = batch.query_start_loc, batch.seq_lens
    if starts is None or lengths is None:
        missing = "query_start_loc" if starts is None else "seq_lens"
        raise LayoutError(
            f"expected {missing} in the batch, found None: pass it, or bind(..., inputs=...) the "
            "framework's persistent tensors"
        )
    return starts, lengths


def check_batch(batch: DraftBatch, rows: int, device: torch.device) -> None:
    """Raise before any buffer is written unless a batch can be read; ``rows`` is the tables'."""
    starts, lengths = given_inputs(batch)
    _check_readable("query_start_loc", starts, batch.num_reqs + 1, device)
    for name, tensor in (("seq_lens", lengths), *_optional(batch)):
        _check_readable(name, tensor, batch.num_reqs, device)
        if tensor.device != starts.device:
            raise LayoutError(
                f"expected all inputs of a batch on one device, found query_start_loc on "
                f"{starts.device} and {name} on {tensor.device}: move {name} there"
            )
    check_rows(batch, rows)


def check_bound(batch: DraftBatch, rows: int, inputs: BoundInputs) -> None:
    """Raise unless the tensors of a batch, where it has any, are the bound ones."""
    names = [field.name for field in fields(BoundInputs) if field.name != "num_reqs"]
    for name in names:
        given, read = getattr(batch, name), getattr(inputs, name)
        if given is None or given is read:
            continue
        if not _same_start(given, read):
            raise StaleAddressError(
                f"expected {name} of the batch as None or as bound, where builds read it, "
                f"{_describe(read)}, found {_describe(given)}: write the values there, or "
                "release() and bind without inputs"
            )
    check_rows(batch, rows)


def check_rows(batch: DraftBatch, rows: int) -> None:
    """Raise ``CapacityError`` for requests that a bound block table has no row for."""
    if batch.num_reqs > rows:
        raise CapacityError(
            f"a bound block table has {rows} rows, the batch has {batch.num_reqs} requests: bind "
            "the host's whole table"
        )


def _optional(batch: DraftBatch) -> list[tuple[str, Tensor]]:
    named = ((name, getattr(batch, name)) for name in OPTIONAL)
    return [(name, tensor) for name, tensor in named if tensor is not None]


def _same_start(given: object, read: Tensor | None) -> bool:
    """Whether a view begins where the bound tensor does, and is read alike."""
    if read is None or not isinstance(given, Tensor):
        return False
    # an empty view has no address
    empty = given.numel() == 0
    return empty or (given.data_ptr(), given.dtype, given.stride()) == (
        read.data_ptr(),
        read.dtype,
        read.stride(),
    )


def _check_readable(name: str, tensor: Tensor, count: int, device: torch.device) -> None:
    if not isinstance(tensor, Tensor):
        raise LayoutError(
            f"expected {name} as a tensor, found {type(tensor).__name__}: pass int32 on {device} "
            "or the host"
        )
    near = tensor.is_cpu or tensor.device == device
    packed = tensor.dim() == 1 and tensor.is_contiguous()
    if not near or tensor.dtype is not torch.int32 or not packed:
        raise LayoutError(
            f"expected {name} as contiguous 1-D int32 on {device} or the host, found "
            f"{tensor.dtype} {tuple(tensor.shape)} strides {tensor.stride()} on {tensor.device}"
        )
    if tensor.numel() < count:
        raise LayoutError(f"expected {name} of at least {count} entries, found {tensor.numel()}")


def check_inputs(inputs: BoundInputs, max_reqs: int, device: torch.device) -> None:
    """Raise ``LayoutError`` unless bound inputs are int32 and hold every padded row."""
    sizes = {
        "query_start_loc": max_reqs + 1,
        "seq_lens": max_reqs,
        "num_rejected": max_reqs,
        "num_reqs": 1,
        "drafts": max_reqs,
    }
    for name, size in sizes.items():
        tensor: Tensor | None = getattr(inputs, name)
        if tensor is None and name == "drafts":
            continue
        if not isinstance(tensor, Tensor):
            raise LayoutError(
                f"expected bound {name} as a tensor, found {type(tensor).__name__}: pass the "
                "host's whole persistent buffer"
            )
        packed = tensor.dim() == 1 and tensor.is_contiguous()
        fits = tensor.dtype is torch.int32 and tensor.numel() >= size
        if not packed or not fits or tensor.device != device:
            raise LayoutError(
                f"expected bound {name} as contiguous 1-D int32 of at least {size} entries on "
                f"{device}, found {tensor.dtype} of shape {tuple(tensor.shape)} on "
                f"{tensor.device}: pass the framework's whole persistent buffer"
            )
