"""Tensors as a tape remembers them: geometry frozen, storages that it does not own held weakly."""

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor, UntypedStorage
from torch.multiprocessing.reductions import StorageWeakRef

from dsacp.core import LayoutError


@dataclass(frozen=True)
class Geometry:
    """How a tensor looked when it was recorded; ``squeeze_`` and friends change it later."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    conjugate: bool = False
    negative: bool = False

    @classmethod
    def of(cls, tensor: Tensor) -> "Geometry":
        """Freeze a strided tensor's geometry.

        Raises:
            LayoutError: the tensor is not strided.
        """
        if tensor.layout is not torch.strided:
            raise LayoutError(
                f"expected strided tensors on the tape, found {tensor.layout}: convert it before "
                "the capture"
            )
        return cls(
            tensor.dtype,
            tuple(tensor.shape),
            tensor.stride(),
            int(tensor.storage_offset()),
            tensor.is_conj(),
            tensor.is_neg(),
        )

    def view(self, storage: UntypedStorage) -> Tensor:
        """Return a new tensor of this geometry over ``storage``."""
        empty = torch.empty(0, dtype=self.dtype, device=storage.device)
        tensor = empty.set_(storage, self.offset, self.shape, self.stride)
        if self.conjugate:
            tensor = torch.conj(tensor)
        return torch._neg_view(tensor) if self.negative else tensor

    def __str__(self) -> str:
        name = str(self.dtype).removeprefix("torch.")
        return f"{name} {list(self.shape)}"


@dataclass(frozen=True)
class Slot:
    """A tensor on the tape: which storage, and the geometry at record time."""

    storage: int
    geometry: Geometry


class WeakTensor:
    """A tensor that can be had again while somebody else keeps its storage alive."""

    def __init__(self, tensor: Tensor) -> None:
        self.address = tensor.data_ptr()
        self.geometry = Geometry.of(tensor)
        self._weak = StorageWeakRef(tensor.untyped_storage())

    def get(self) -> Tensor | None:
        """Return the tensor, or None once its storage was freed or moved."""
        storage = UntypedStorage._new_with_weak_ptr(self._weak.cdata)
        tensor = None if storage is None else self.geometry.view(storage)
        return tensor if tensor is not None and tensor.data_ptr() == self.address else None


class ForeignStorage:
    """A storage born outside the tape: watched, never kept alive, never enlarged.

    Args:
        storage: the live storage.
        label: what messages call it.
        first_use: the recorded op that read it first, with the tensor's geometry.
    """

    def __init__(self, storage: UntypedStorage, label: str, first_use: str) -> None:
        self._weak = StorageWeakRef(storage)
        self.address = storage.data_ptr()
        self.nbytes = storage.nbytes()
        self.label = label
        self.first_use = first_use

    def current_address(self) -> int | None:
        """Return where the storage lies now, or None once it was freed."""
        storage = UntypedStorage._new_with_weak_ptr(self._weak.cdata)
        return None if storage is None else storage.data_ptr()

    def alias(self) -> UntypedStorage:
        """Return a storage over the same bytes that does not keep them alive.

        The caller checks ``current_address`` before every use.
        """
        if self.nbytes == 0:
            return UntypedStorage(0)
        memory = (ctypes.c_char * self.nbytes).from_address(self.address)
        return torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()

    def stand_in(self) -> UntypedStorage:
        """Return poison of the same size: -1 as an integer, NaN as a float of any width."""
        return torch.full((self.nbytes,), 0xFF, dtype=torch.uint8).untyped_storage()

    def describe(self, now: int | None) -> str:
        """Say what the storage was, who reads it, and what became of it."""
        fate = "freed" if now is None else f"moved to {now:#x}"
        return f"{self.label} ({self.nbytes} bytes at {self.address:#x}, {fate}; {self.first_use})"
