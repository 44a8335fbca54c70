"""Recorded calls bound to tensors once, so that a replay is a loop over ready closures."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, UntypedStorage

from dsacp.graph.tape.foreign import Slot
from dsacp.graph.tape.record import Call, is_written, tensors_in

Step = Callable[[], object]

_TENSOR_OPTIONS = frozenset({"dtype", "layout", "device", "pin_memory"})


def bind_calls(calls: Sequence[Call], storages: Mapping[int, UntypedStorage]) -> list[Step]:
    """Resolve every slot against ``storages`` and return one closure a call."""
    resolved: dict[Slot, Tensor] = {}

    def resolve(value: Any) -> Any:
        if isinstance(value, Slot):
            if value not in resolved:
                resolved[value] = value.geometry.view(storages[value.storage])
            return resolved[value]
        if isinstance(value, list | tuple):
            return type(value)([resolve(item) for item in value])
        return value

    return [_bind(call, resolve) for call in calls]


def _bind(call: Call, resolve: Callable[[Any], Any]) -> Step:
    args = resolve(call.args)
    kwargs = {key: resolve(item) for key, item in call.kwargs.items()}
    targets = [resolve(slot) for slot in call.outputs]
    if not any(target is not None for target in targets):
        return partial(call.func._op, *args, **kwargs)
    if len(targets) == 1 and not is_written(call.func):
        step = _bind_single(call.func, args, kwargs, targets[0])
        if step is not None:
            return step
    return partial(_run_and_copy, call.func._op, args, kwargs, targets)


def _bind_single(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], target: Tensor
) -> Step | None:
    """Let the op write straight into its captured output, where it has such a form."""
    aten = torch.ops.aten
    if func in (aten._to_copy.default, aten.clone.default):
        return partial(aten.copy_.default._op, target, args[0])
    out = _out_variant(func)
    if out is None:
        return None
    variant, name = out
    kept = {arg.name for arg in variant._schema.arguments}
    given = {key: item for key, item in kwargs.items() if key in kept}
    return partial(variant._op, *args, **given, **{name: target})


def _out_variant(func: Any) -> tuple[Any, str] | None:
    """Find the overload with the same inputs and one output argument."""
    wanted = func._schema.arguments
    if any(arg.name in _TENSOR_OPTIONS and not arg.kwarg_only for arg in wanted):
        return None
    packet = func.overloadpacket
    for overload in packet.overloads():
        candidate = getattr(packet, overload)
        outs = [arg.name for arg in candidate._schema.arguments if arg.is_out]
        if len(outs) == 1 and _inputs(candidate._schema.arguments) == _inputs(wanted):
            return candidate, outs[0]
    return None


def _inputs(arguments: Sequence[Any]) -> list[tuple[str, str]]:
    """Name and type of each input; the output tensor itself carries dtype, layout and device."""
    return [
        (arg.name, str(arg.type))
        for arg in arguments
        if not arg.is_out and arg.name not in _TENSOR_OPTIONS
    ]


def _run_and_copy(
    op: Callable[..., object],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    targets: Sequence[Tensor | None],
) -> None:
    for target, source in zip(targets, tensors_in(op(*args, **kwargs)), strict=True):
        if target is not None:
            target.copy_(source)
