"""Every tensor that metadata reaches, with the path to it."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor

_LEAVES = (
    *(str, bytes, int, float, complex, type),
    *(FunctionType, BuiltinFunctionType, MethodType, ModuleType),
)


@dataclass(frozen=True)
class Found:
    """A tensor and how it was reached.

    Attributes:
        path: the Python expression after the metadata's name, e.g. ``[1].groups['swa'].positions``.
        group: its key in the innermost mapping called ``groups``, or None.
        step: ``draft_index`` of the innermost object on the way that has one.
        tensor: the tensor itself.
    """

    path: str
    group: str | None
    step: int | None
    tensor: Tensor


@dataclass(frozen=True)
class _Place:
    path: str
    name: str = ""
    group: str | None = None
    step: int | None = None


def walk(value: object, path: str = "", skip: Collection[str] = ()) -> Iterator[Found]:
    """Yield every reachable tensor: dataclasses, mappings, sequences, slots and attributes.

    An object that is reached twice is yielded at both paths, since sharing is what guards look for.

    Args:
        value: where to start.
        path: what paths begin with.
        skip: attributes and keys that are not followed.
    """
    yield from _walk(value, _Place(path), (), frozenset(skip))


def tensors_of(value: object, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield (path, tensor) of every reachable tensor."""
    for found in walk(value, path or "metadata"):
        yield found.path, found.tensor


def _walk(
    value: object, place: _Place, above: tuple[object, ...], skip: frozenset[str]
) -> Iterator[Found]:
    if isinstance(value, Tensor):
        yield Found(place.path, place.group, place.step, value)
        return
    if value is None or isinstance(value, _LEAVES) or any(value is item for item in above):
        return
    index = getattr(value, "draft_index", None)
    step = index if isinstance(index, int) else place.step
    in_groups = isinstance(value, Mapping) and place.name == "groups"
    for suffix, name, child in _children(value):
        if name not in skip:
            below = _Place(place.path + suffix, name, name if in_groups else place.group, step)
            yield from _walk(child, below, (*above, value), skip)


def _children(value: object) -> Iterator[tuple[str, str, Any]]:
    """Yield (suffix of the path, key or attribute, child)."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield f"[{key!r}]", str(key), item
    elif isinstance(value, Sequence | set | frozenset):
        for index, item in enumerate(value):
            yield f"[{index}]", "", item
    else:
        for name in _attributes(value):
            yield f".{name}", name, getattr(value, name, None)


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
