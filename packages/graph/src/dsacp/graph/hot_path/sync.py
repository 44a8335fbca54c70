"""No host sync on the hot path: two modes that raise before the device is waited for."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dsacp.core import HostSyncError
from dsacp.graph.tape.record import Namer, PlainDispatchMode, tensors_in

_WAITING_TAGS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
_INDEXING = ("aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_")
_COPIES = ("aten::_to_copy", "aten::copy_", "aten::_copy_from", "aten::copy")

# Dispatch never sees these: they read the bytes of a CPU tensor without an op.
_READS = frozenset(
    {
        torch.Tensor.tolist,
        torch.Tensor.numpy,
        torch.Tensor.cpu,
        torch.Tensor.item,
        torch.Tensor.__array__,
        torch.Tensor.__repr__,
        torch.Tensor.pin_memory,
    }
)
_HOST_MADE: tuple[Callable[..., Tensor], ...] = (
    torch.tensor,
    torch.as_tensor,
    torch.asarray,
    torch.Tensor.new_tensor,
)


def describe(tensor: Tensor, name_of: Namer | None) -> str:
    """Name a tensor by its buffer, or by dtype and shape."""
    label = name_of(tensor.data_ptr()) if name_of is not None else None
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{label or 'a tensor'} ({dtype} {list(tensor.shape)})"


class _SyncDispatchMode(PlainDispatchMode):
    def __init__(self, name_of: Namer | None, allow_async_copies: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._name_of = name_of
        self._allow_async = allow_async_copies

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        tensors = list(tensors_in((args, kwargs)))
        reason = _reason(func, args, kwargs, tensors, self._allow_async)
        if reason is not None:
            named = ", ".join(describe(tensor, self._name_of) for tensor in tensors[:1])
            raise HostSyncError(
                f"expected no host sync, found {reason} ({func.name()} on {named or 'no tensor'}): "
                "keep the value on the device, or move the read out of the hot path"
            )
        if torch.is_inference_mode_enabled():
            # Inference mode shows composite ops whole, and the waiting op may be inside.
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        kernel = _device_kernel(func, tensors)
        if kernel is not None:
            # On a device a custom op's own Python can wait as well: straight to its kernel, since
            # the op itself would come back here.
            with self:
                return func.redispatch(kernel, *args, **kwargs)
        with torch._C.DisableTorchFunction():
            return func(*args, **kwargs)


def _device_kernel(func: Any, tensors: list[Tensor]) -> torch._C.DispatchKeySet | None:
    """Return the key of a custom op's device kernel, None for other ops and on the CPU."""
    if func._schema.name.startswith("aten::") or any(item.requires_grad for item in tensors):
        return None
    for tensor in tensors:
        if tensor.device.type not in ("cpu", "meta"):
            name = torch._C._dispatch_key_for_device(tensor.device.type)
            return torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name))
    return None


class _SyncFunctionMode(TorchFunctionMode):
    def __init__(self, name_of: Namer | None) -> None:
        super().__init__()
        self._name_of = name_of

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        made = _makes_tensor(func, args)
        if made or func in _READS:
            named = describe(args[0], self._name_of) if not made else "host data"
            verb = "a tensor made of" if made else "a read of"
            raise HostSyncError(
                f"expected no host sync, found {verb} {named} by {func.__name__}: keep values on "
                "the device and stage host inputs before the hot path"
            )
        return func(*args, **(kwargs or {}))


def _makes_tensor(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether a call builds a tensor of host data; a list as an index is copied like one."""
    if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__):
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        return any(isinstance(item, list) or hasattr(item, "__array_interface__") for item in index)
    return func in _HOST_MADE and not (args and isinstance(args[0], Tensor))


@contextmanager
def no_host_sync(
    name_of: Namer | None = None, *, allow_async_copies: bool = False
) -> Iterator[None]:
    """Forbid host syncs inside the block, on any device.

    Seen: ``item``, ``tolist``, ``cpu``, ``numpy``, truth values, ops whose output shape depends on
    data (``nonzero``, boolean masks), copies between host and device, tensors made of host data.
    The Python of a custom op counts as a kernel on the CPU and is looked into on a device.

    Args:
        name_of: names the buffer at an address, as ``GraphGuard.label_of`` does.
        allow_async_copies: permit ``non_blocking`` copies from or to pinned host memory.

    Raises:
        HostSyncError: at the first of them, before it runs.
    """
    with _SyncFunctionMode(name_of), _SyncDispatchMode(name_of, allow_async_copies):
        yield


def _reason(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor], pinned_ok: bool
) -> str | None:
    name = func._schema.name
    if name in _INDEXING:
        return _index_reason(name, args, tensors)
    if name == "aten::lift_fresh" and tensors[0].dim() > 0:
        # A scalar of ``x[1:] = 7`` goes with the launch; a list becomes a copy to the device.
        return "a tensor made of host data"
    waits = name == "aten::is_nonzero" or any(tag in func.tags for tag in _WAITING_TAGS)
    if waits and kwargs.get("output_size") is None:
        return "a value or shape that depends on device data"
    if name in _COPIES:
        return _copy_reason(args, kwargs, tensors, pinned_ok)
    return None


def _index_reason(name: str, args: tuple[Any, ...], tensors: list[Tensor]) -> str | None:
    indices = list(tensors_in(args[1]))
    if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
        # Writing one value through a mask becomes a masked fill, which does not wait.
        if name != "aten::index" and args[2].numel() == 1 and not any(args[3:]):
            return None
        return "an index by a boolean mask"
    if any(index.device.type != tensors[0].device.type for index in indices):
        return "an index that lies on the host"
    return None


def _copy_reason(
    args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor], pinned_ok: bool
) -> str | None:
    devices = {tensor.device.type for tensor in tensors}
    target = kwargs.get("device")
    if target is not None:
        devices.add(torch.device(target).type)
    if len(devices) == 1:
        return None
    asynchronous = kwargs.get("non_blocking") or (len(args) > 2 and args[2])
    host = [tensor for tensor in tensors if tensor.device.type == "cpu"]
    if pinned_ok and asynchronous and all(tensor.is_pinned() for tensor in host):
        return None
    return f"a copy between {' and '.join(sorted(devices))}"
