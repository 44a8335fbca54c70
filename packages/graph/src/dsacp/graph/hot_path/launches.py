"""How many launches a step costs."""

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from dsacp.graph.tape.record import PlainDispatchMode, is_geometry_only, is_written, tensors_in

_FREE = ("aten::empty", "aten::new_empty", "aten::lift")


class LaunchCounter(PlainDispatchMode):
    """Counts launches inside a ``with`` block.

    A custom op is one launch, whatever its reference does on the CPU; an aten op is one unless it
    only views or allocates; the replay of a graph is one, named ``graph::replay``.

    Attributes:
        by_name: launches by op name.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.by_name: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """All launches so far."""
        return self.by_name.total()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Count one op and run it."""
        kwargs = kwargs or {}
        inputs = {tensor.untyped_storage()._cdata for tensor in tensors_in((args, kwargs))}
        result = func(*args, **kwargs)
        if _launches(func, inputs, result):
            self.by_name[func._schema.name] += 1
        return result


def _launches(func: Any, inputs: set[int], result: object) -> bool:
    name = func._schema.name
    if not name.startswith("aten::"):
        return True
    if func.is_view or is_geometry_only(func) or name.startswith(_FREE):
        return False
    if is_written(func):
        return True
    outputs = [tensor.untyped_storage()._cdata for tensor in tensors_in(result)]
    return not outputs or any(key not in inputs for key in outputs)


def count_replay() -> None:
    """Tell the counters on this thread that a graph was launched."""
    if torch._C._len_torch_dispatch_stack():
        for mode in _get_current_dispatch_mode_stack():
            if isinstance(mode, LaunchCounter):
                mode.by_name["graph::replay"] += 1
