"""Byte ranges have one owner each (I5)."""

from collections.abc import Mapping

from torch import Tensor

from dsacp.core import AliasError, BufferRegion, CapacityError
from dsacp.graph.guard.walk import Found, tensors_of
from dsacp.graph.tape.record import Namer


def byte_range(tensor: Tensor) -> tuple[int, int]:
    """Return the first byte of a strided tensor and one past its last."""
    start = tensor.data_ptr()
    if tensor.numel() == 0:
        return start, start
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (reach + 1) * tensor.element_size()


def short_group(region: BufferRegion) -> str:
    """Return the group's own name; owners of several builders put ``owner.`` before it."""
    return region.group.rpartition(".")[2]


def check_ownership(found: Found, region: BufferRegion) -> None:
    """Raise unless a step's tensor lies inside a buffer of its own step and group.

    Raises:
        AliasError: the buffer is another step's or group's.
        CapacityError: the tensor reaches past the buffer's end.
    """
    start, end = byte_range(found.tensor)
    where = f"found it in {region.label} at {start:#x}"
    if found.step is not None and found.step != region.step:
        raise AliasError(
            f"expected {found.path} in a buffer of step {found.step}, {where}: give each draft "
            "step its own buffers"
        )
    if found.group is not None and found.group != short_group(region):
        raise AliasError(
            f"expected {found.path} in a buffer of group {found.group!r}, {where}: give each KV "
            "group its own buffers"
        )
    if end > region.address + region.nbytes:
        raise CapacityError(
            f"{found.path} needs {end - start} bytes at {start:#x}, its buffer {region.label} ends "
            f"{region.address + region.nbytes - start} bytes on: raise the capacity"
        )


def check_isolated(
    owners: Mapping[str, object], shared: object = (), name_of: Namer | None = None
) -> None:
    """Raise ``AliasError`` if tensors of two owners share a byte.

    Args:
        owners: metadata by owner's name.
        shared: tensors that several owners may read.
        name_of: names the buffer at an address.
    """
    common = [byte_range(tensor) for _, tensor in tensors_of(shared)]
    ranges = sorted(
        (*byte_range(tensor), owner, path)
        for owner, metadata in owners.items()
        for path, tensor in tensors_of(metadata, owner)
        if not any(low <= tensor.data_ptr() < high for low, high in common)
    )
    furthest: dict[str, tuple[int, str]] = {}
    for start, end, owner, path in ranges:
        for other, (reach, where) in furthest.items():
            if other != owner and start < min(reach, end):
                label = name_of(start) if name_of is not None else None
                raise AliasError(
                    f"expected {other} and {owner} on disjoint bytes, found {where} and {path} "
                    f"sharing {min(reach, end) - start} bytes at {start:#x} "
                    f"({label or 'no guarded buffer'}): give each owner its own arena"
                )
        if end > furthest.get(owner, (0, ""))[0]:
            furthest[owner] = (end, path)
