"""Every tensor that metadata reaches, with the path to it."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor

Keys = tuple[str, ...]

_LEAVES = (
    *(str, bytes, int, float, complex, type),
    *(FunctionType, BuiltinFunctionType, MethodType, ModuleType),
)


@dataclass(frozen=True)
class Found:
    """A tensor and how it was reached.

    Attributes:
        path: the Python expression after the metadata's name, e.g. ``[1].groups['swa'].positions``.
        keys: the mapping keys on the way.
        step: ``draft_index`` of the innermost object on the way that has one.
        tensor: the tensor itself.
    """

    path: str
    keys: Keys
    step: int | None
    tensor: Tensor


def walk(value: object, path: str = "") -> Iterator[Found]:
    """Yield every reachable tensor: dataclasses, mappings, sequences, slots and attributes.

    An object that is reached twice is yielded at both paths, since sharing is what guards look for.
    """
    yield from _walk(value, path, (), None, ())


def tensors_of(value: object, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield (path, tensor) of every reachable tensor."""
    for found in walk(value, path or "metadata"):
        yield found.path, found.tensor


def _walk(
    value: object, path: str, keys: Keys, step: int | None, above: tuple[object, ...]
) -> Iterator[Found]:
    if isinstance(value, Tensor):
        yield Found(path, keys, step, value)
        return
    if value is None or isinstance(value, _LEAVES) or any(value is item for item in above):
        return
    index = getattr(value, "draft_index", None)
    if isinstance(index, int):
        step = index
    for suffix, key, child in _children(value):
        below = keys if key is None else (*keys, key)
        yield from _walk(child, path + suffix, below, step, (*above, value))


def _children(value: object) -> Iterator[tuple[str, str | None, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield f"[{key!r}]", str(key), item
    elif isinstance(value, Sequence | set | frozenset):
        for index, item in enumerate(value):
            yield f"[{index}]", None, item
    else:
        for name in _attributes(value):
            yield f".{name}", None, getattr(value, name, None)


def _attributes(value: object) -> list[str]:
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    slots = [
        name
        for base in type(value).__mro__
        for name in _names(base.__dict__.get("__slots__", ()))
        if not name.startswith("__")
    ]
    return [*slots, *getattr(value, "__dict__", {})]


def _names(slots: object) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)  # type: ignore[arg-type]
