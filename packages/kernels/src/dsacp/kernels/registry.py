"""Which implementation of a kernel runs: chosen by device, or forced by name."""

import importlib
import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal

import torch

from dsacp.core import UnsupportedHostError, install_hint
from dsacp.kernels.devices import on_device
from dsacp.kernels.eager import are_plain, bound_call, past_dispatcher

Impl = Literal["auto", "reference", "triton"]


@dataclass(frozen=True)
class Kernel:
    """A kernel: its torch reference, always there, and where its Triton launcher lives.

    ``triton`` is ``"package.module:function"``, imported on first use only, so that importing a
    kernel never imports Triton. Both callables take the same arguments and return None. ``bound``
    names a function of the same arguments that returns their launch, or None where it has none.
    """

    name: str
    reference: Callable[..., None]
    triton: str | None = None
    bound: str | None = None

    def select(self, device: torch.device, impl: str = "auto") -> Callable[..., None]:
        """Return the implementation for ``device``, which it makes current for its launches.

        Raises:
            UnsupportedHostError: ``impl="triton"`` was forced and there is none, or no Triton.
        """
        if impl == "reference" or (impl == "auto" and device.type == "cpu"):
            return self.reference
        if self.triton is not None and has_triton():
            return on_device(_load(self.triton), device)
        if impl == "triton":
            reason = "it has none" if self.triton is None else "the module triton is not installed"
            raise UnsupportedHostError(
                f"expected a Triton implementation of {self.name}, but {reason}: "
                f"{install_hint('dsacp-kernels[cuda]')} (or [ascend]), or use impl='reference'"
            )
        return self.reference

    def prepare(
        self,
        operator: Callable[..., None],
        arguments: tuple[object, ...],
        device: torch.device,
        impl: str,
    ) -> Callable[[], None]:
        """Return a call of ``operator`` with these arguments and ``impl``, to be made many times.

        Where Triton's kernel runs it is launched without the dispatcher, unless a mode or a
        compiler would see the operator. The arguments live as long as the call does; nobody may
        resize them.
        """
        call = partial(operator, *arguments, impl)
        target = self.bound
        if target is None or not are_plain(arguments):
            return call

        def bind() -> Callable[[], None] | None:
            if self.select(device, impl) is self.reference:
                return None
            launch: Callable[[], None] | None = _load(target)(*arguments)
            return launch

        return bound_call(call, bind)


@cache
def has_triton() -> bool:
    """Tell whether a module named triton is installed."""
    return importlib.util.find_spec("triton") is not None


@cache
def _load(target: str) -> Callable[..., Any]:
    module, _, function = target.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def kernel_op(
    name: str, mutates_args: Iterable[str], *, symbolic: bool = True, direct: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as a ``torch.library`` operator that returns nothing.

    The schema comes from the annotations, so ``from __future__ import annotations`` is not
    allowed in the function's module. The decorated name becomes the registered operator.

    Args:
        name: qualified name, ``"dsacp::..."``.
        mutates_args: parameters that the function writes; everything else is read only.
        symbolic: whether integers may be symbols under ``torch.compile``. Without, a list of them
            crosses the dispatcher at half the cost.
        direct: call the function itself where nobody would see the operator. For words only: the
            dispatcher also keeps gradients out of the function.
    """

    # custom_op would fill in defaults on every call, in time quadratic in the parameters: 130 us
    # for draft_steps. These operators have neither defaults nor gradients.
    def register(function: Callable[..., None]) -> Callable[..., None]:
        schema = torch.library.infer_schema(function, mutates_args=mutates_args)
        schema = schema if symbolic else schema.replace("SymInt", "int")
        torch.library.define(name, schema, tags=(torch.Tag.pt2_compliant_tag,))
        torch.library.impl(name, "default", function)
        torch.library.register_fake(name, _no_output)
        namespace, _, operator = name.partition("::")
        registered: Callable[..., None] = getattr(getattr(torch.ops, namespace), operator).default
        return past_dispatcher(registered, function) if direct else registered

    return register


def _no_output(*_args: object, **_kwargs: object) -> None:
    """Run an operator on fake tensors: every output is an argument."""
