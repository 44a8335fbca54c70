"""Counts what a build would launch on a device, though everything here lies on the CPU."""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from dsacp.graph import LaunchCounter

UPSTREAM_LOCAL = 3
"""Two fills and one Triton kernel; in the double upstream takes its torch path instead."""

COPY = "copy from the host's memory"


class DeviceLaunches(LaunchCounter):
    """Leaves out what upstream computes on its CPU mirrors.

    An op whose tensors all come from a mirror is host work. A factory is a launch where its device
    is the one that builders are given, which has an index here, and host work otherwise.

    Args:
        common: the batch whose CPU mirrors are known.
        mirrors: more tensors that lie on the host.

    Attributes:
        paused: nothing is counted while it is True.
        factories: tensors made for the host, by op.
    """

    def __init__(self, common: Any, mirrors: Iterable[Tensor] = ()) -> None:
        super().__init__()
        known = (
            *mirrors,
            common.query_start_loc_cpu,
            common.seq_lens_cpu,
            common._seq_lens_cpu,
            common.is_prefilling,
        )
        self._kept: list[Tensor] = [tensor for tensor in known if tensor is not None]
        self._host = {_key(tensor) for tensor in self._kept}
        self.paused = False
        self.factories: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Count an op unless its inputs are the host's."""
        inputs = [_key(tensor) for tensor in _tensors((args, kwargs))]
        if not inputs and not self.paused and on_device((kwargs or {}).get("device")):
            if not func._schema.name.startswith("aten::empty"):
                self.by_name[func._schema.name] += 1
            return func(*args, **(kwargs or {}))
        made = func._schema.name == "aten::lift_fresh" or not inputs
        if self.paused or made or all(key in self._host for key in inputs):
            result = func(*args, **(kwargs or {}))
            if not self.paused:
                self.factories.update([func._schema.name] if made else ())
                self._remember(result)
            return result
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _remember(self, result: Any) -> None:
        for tensor in _tensors(result):
            self._kept.append(tensor)  # a freed storage's key could come back for another tensor
            self._host.add(_key(tensor))

    def from_host(self, make: Any, *args: Any, **kwargs: Any) -> Any:
        """Make a tensor of host data; for the device that is a copy of its own."""
        if self.paused or not on_device(kwargs.get("device")):
            return make(*args, **kwargs)
        self.by_name[COPY] += 1
        return self.uncounted(make, *args, **kwargs)

    def on_host(self, make: Any, *args: Any, **kwargs: Any) -> Any:
        """Make a tensor that stays on the host."""
        result = make(*args, **kwargs)
        self._remember(result)
        return result

    def uncounted(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        """Run something of which nothing is counted."""
        before, self.paused = self.paused, True
        try:
            return call(*args, **kwargs)
        finally:
            self.paused = before


def on_device(device: Any) -> bool:
    """Whether a factory was asked for the builders' device."""
    return device is not None and torch.device(device).index is not None


def _key(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


@contextmanager
def device_launches(
    common: Any, stock: Any, mirrors: Iterable[Tensor] = ()
) -> Iterator[DeviceLaunches]:
    """Count the launches of a build; upstream's local metadata is counted as on its device."""
    counter = DeviceLaunches(common, mirrors)
    original = stock._build_local_token_metadata

    def local(self: Any, *args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("local_query_start_loc") is not None
        counter.paused = device
        try:
            return original(self, *args, **kwargs)
        finally:
            counter.paused = False
            if device:
                counter.by_name["upstream's local metadata"] += UPSTREAM_LOCAL

    make = partial(counter.from_host, torch.tensor)
    # our kernels read a layout only where it lies on the host, which on a device it does not
    bounds = sys.modules["dsacp.kernels.bounds"]
    check = partial(counter.uncounted, bounds._check)
    with (
        mock.patch.object(bounds, "_check", check),
        mock.patch.object(stock, "_build_local_token_metadata", local),
        mock.patch.object(torch, "tensor", make),
        mock.patch.object(torch, "from_numpy", partial(counter.on_host, torch.from_numpy)),
        counter,
    ):
        yield counter
