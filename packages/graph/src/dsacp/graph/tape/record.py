"""What a tape writes down while the ops run."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode

from dsacp.graph.tape.foreign import ForeignStorage, Geometry, Slot

Namer = Callable[[int], str | None]


@dataclass(frozen=True)
class Call:
    """One recorded op: tensors replaced by slots, and the outputs that a replay must refresh."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[Slot | None, ...]


def tensors_in(value: object) -> Iterator[Tensor]:
    """Yield the tensors of an op's arguments or results, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


def is_written(func: Any) -> bool:
    """Whether an op changes memory that its caller passed."""
    return bool(func._schema.is_mutable)


def is_geometry_only(func: Any) -> bool:
    """Whether an op changes a tensor's geometry and no byte of its data."""
    return torch.Tag.inplace_view in func.tags


class Recorder:
    """Classifies storages and keeps the calls.

    A storage is the tape's own when an op returned it that was not given it; those are kept. All
    others are foreign and only watched.

    Attributes:
        calls: recorded ops that a replay repeats; pure views are not among them.
        own: storages born on the tape, by key.
        foreign: storages born elsewhere, by key.
        seen: ops seen, views included.
    """

    def __init__(self, name_of: Namer | None = None) -> None:
        self.calls: list[Call] = []
        self.own: dict[int, UntypedStorage] = {}
        self.foreign: dict[int, ForeignStorage] = {}
        self.seen = 0
        self._name_of = name_of

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one op and record it."""
        self.seen += 1
        before_args = self._encode(args, func)
        before = {key: self._encode(item, func) for key, item in kwargs.items() if key != "out"}
        inputs = {t.untyped_storage()._cdata for t in tensors_in((args, kwargs))}
        # A kernel's own Python may look at tensors as it likes: that is no host sync of the step.
        with torch._C.DisableTorchFunction():
            result = func(*args, **kwargs)
        if "out" in kwargs:
            # ``out`` may have been resized by the op, so its geometry counts afterwards.
            before["out"] = self._encode(kwargs["out"], func)
        fresh = self._adopt(func, result, inputs)
        writes = not func._schema.returns or (is_written(func) and not is_geometry_only(func))
        if writes or any(slot is not None for slot in fresh):
            self.calls.append(Call(func, before_args, before, fresh))
        return result

    def _adopt(self, func: Any, result: object, inputs: set[int]) -> tuple[Slot | None, ...]:
        if func is torch.ops.aten.lift_fresh.default:
            # A tensor made of host data: a constant of the tape, with nothing to repeat.
            for tensor in tensors_in(result):
                self._own(tensor)
            return ()
        return tuple(self._fresh(tensor, inputs, func) for tensor in tensors_in(result))

    def _fresh(self, tensor: Tensor, inputs: set[int], func: Any) -> Slot | None:
        key = tensor.untyped_storage()._cdata
        if key in inputs or key in self.foreign:
            return None
        self._own(tensor)
        empty = func._schema.name.startswith(("aten::empty", "aten::new_empty"))
        return None if empty else Slot(key, Geometry.of(tensor))

    def _own(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self.foreign.pop(storage._cdata, None)
        self.own.setdefault(storage._cdata, storage)

    def _encode(self, value: Any, func: Any) -> Any:
        if isinstance(value, Tensor):
            return self._slot(value, func)
        if isinstance(value, list | tuple):
            return type(value)([self._encode(item, func) for item in value])
        return value

    def _slot(self, tensor: Tensor, func: Any) -> Slot:
        geometry = Geometry.of(tensor)
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.own and key not in self.foreign:
            name = self._name_of(tensor.data_ptr()) if self._name_of is not None else None
            use = f"first used by {func.name()} as {geometry}"
            self.foreign[key] = ForeignStorage(storage, name or f"a tensor {geometry}", use)
        return Slot(key, geometry)


class PlainDispatchMode(TorchDispatchMode):
    """A dispatch mode that does not import the compiler.

    By default torch guards each mode's handler against Dynamo, which it imports on the first op:
    seconds on every start, for modes that never run under ``torch.compile``.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
