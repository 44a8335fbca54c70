"""Calls that go past torch's dispatcher, which costs more than a launch, while nobody listens."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn import Parameter

PLAIN = frozenset({Tensor, Parameter, int, bool, float, str, type(None)})


def is_watched() -> bool:
    """Tell whether operators must be seen: by a mode (tapes, counters, tracers) or a compiler."""
    return bool(
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
    )


def are_plain(values: Iterable[object]) -> bool:
    """Tell whether no value, or item of a list, is a tensor subclass, a symbol or unknown."""
    for value in values:
        if type(value) in PLAIN:
            continue
        if not isinstance(value, list | tuple) or not are_plain(value):
            return False
    return True


def past_dispatcher(
    operator: Callable[..., None], function: Callable[..., None]
) -> Callable[..., None]:
    """Return a call of ``function`` where nobody would see ``operator``, which wraps it."""

    def call(*args: object) -> None:
        if is_watched() or not are_plain(args):
            operator(*args)
        else:
            function(*args)

    return call


def bound_call(
    operator: Callable[[], None], bind: Callable[[], Callable[[], None] | None]
) -> Callable[[], None]:
    """Return a call of ``operator``, or of what ``bind`` makes of it where nobody would see it.

    ``bind`` runs at the first such call, when a compiler would not see it; None stands for the
    operator.
    """
    bound: Callable[[], None] | None = None

    def call() -> None:
        nonlocal bound
        if is_watched():
            operator()
            return
        if bound is None:
            bound = bind() or operator
        bound()

    return call
