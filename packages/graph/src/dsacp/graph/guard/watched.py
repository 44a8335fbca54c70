"""Addresses and geometry that a graph captured, and whether they still hold (I1)."""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from dsacp.core import StaleAddressError
from dsacp.graph.tape.record import Namer


@dataclass(frozen=True)
class Watched:
    """Address and geometry of a tensor when it was first seen; its storage is held weakly."""

    address: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    storage: StorageWeakRef
    storage_address: int

    @classmethod
    def of(cls, tensor: Tensor) -> "Watched":
        """Remember a tensor."""
        storage = tensor.untyped_storage()
        return cls(
            tensor.data_ptr(),
            tensor.dtype,
            tuple(tensor.shape),
            tensor.stride(),
            StorageWeakRef(storage),
            storage.data_ptr(),
        )

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{dtype} {list(self.shape)} stride {list(self.stride)} at {self.address:#x}"


def check_same(path: str, seen: Watched | None, tensor: Tensor, name_of: Namer) -> None:
    """Raise ``StaleAddressError`` unless a tensor is where and as it was seen."""
    now = Watched.of(tensor)
    if seen is not None and str(now) == str(seen):
        return
    known = "nothing" if seen is None else str(seen)
    region = name_of(seen.address) if seen is not None else None
    raise StaleAddressError(
        f"expected {path} ({region or 'no guarded buffer'}) as {known}, found {now}: refresh "
        "the captured buffer in place instead of building a new tensor"
    )


def check_alive(path: str, seen: Watched) -> None:
    """Raise ``StaleAddressError`` if the storage was freed or moved."""
    storage = torch.UntypedStorage._new_with_weak_ptr(seen.storage.cdata)
    now = None if storage is None else storage.data_ptr()
    if now == seen.storage_address:
        return
    fate = "freed" if now is None else f"moved to {now:#x}"
    raise StaleAddressError(
        f"expected {path} ({seen}) alive at {seen.storage_address:#x}, found it {fate}: keep "
        "the buffers while the graph is, and capture again after release"
    )


def check_complete(label: str, watched: Collection[str], found: Collection[str]) -> None:
    """Raise ``StaleAddressError`` if a tensor that was watched under ``label`` is not found."""
    for path in watched:
        if path.startswith((f"{label}.", f"{label}[")) and path not in found:
            raise StaleAddressError(
                f"expected {path} as captured, found no such tensor: the metadata changed its "
                "structure; build it with the captured configuration"
            )
