"""What a Triton launch asks the compiler for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from dsacp.ascend_ir.errors import LaunchError

POINTERS = {
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.int16: "*i16",
    torch.float64: "*fp64",
    torch.bool: "*i1",
}


@dataclass(frozen=True)
class Launch:
    """One compilation.

    Attributes:
        kernel: the jitted function.
        signature: type of every runtime argument by name, "*i32" for a tensor of int32.
        constants: value of every compile-time argument by name.
        options: what else the launch says, ``num_warps`` and the like.
        aligned: names of arguments that Triton takes to be multiples of 16.
    """

    kernel: Any
    signature: dict[str, str]
    constants: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    aligned: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The kernel's name."""
        return str(self.kernel.fn.__name__)

    @classmethod
    def of(
        cls, kernel: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], specialise: bool = False
    ) -> "Launch":
        """Return what ``kernel[grid](*args, **kwargs)`` asks for.

        Args:
            kernel: a jitted function.
            args: its positional arguments.
            kwargs: its keyword arguments, with those of the launch.
            specialise: fold arguments that are 1 or None, and note multiples of 16, as Triton does.
        """
        values = bind(kernel, args, kwargs)
        options = {name: v for name, v in kwargs.items() if name.startswith("num_")}
        constants = {p.name: values[p.name] for p in kernel.params if p.is_constexpr}
        constants |= {name: None for name, value in values.items() if value is None}
        aligned = set()
        for parameter in kernel.params if specialise else ():
            name = parameter.name
            if name in constants or parameter.do_not_specialize:
                continue
            if isinstance(values[name], int) and not isinstance(values[name], bool):
                constants |= {name: 1} if values[name] == 1 else {}
            if _is_aligned(values[name]):
                aligned.add(name)
        signature = {n: type_of(n, value) for n, value in values.items() if n not in constants}
        return cls(kernel, signature, constants, options, frozenset(aligned))


def bind(kernel: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a launch's arguments by name, defaults included.

    Raises:
        LaunchError: one is missing.
    """
    values = {p.name: p.default for p in kernel.params if p.has_default}
    values |= dict(zip(kernel.arg_names, args, strict=False))
    values |= {name: value for name, value in kwargs.items() if name in kernel.arg_names}
    missing = [name for name in kernel.arg_names if name not in values]
    if missing:
        raise LaunchError(
            f"expected the arguments {', '.join(kernel.arg_names)} of {kernel.fn.__name__}, found "
            f"no {', '.join(missing)}: pass them"
        )
    return {name: values[name] for name in kernel.arg_names}


def type_of(name: str, value: Any) -> str:
    """Return Triton's name for an argument's type.

    Raises:
        LaunchError: no kernel takes such a value.
    """
    if isinstance(value, torch.Tensor):
        if value.dtype in POINTERS:
            return POINTERS[value.dtype]
    elif isinstance(value, bool):
        return "i1"
    elif isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    elif isinstance(value, float):
        return "fp32"
    found = value.dtype if isinstance(value, torch.Tensor) else type(value).__name__
    raise LaunchError(f"expected {name} as a tensor or a number, found {found}: convert it")


def _is_aligned(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.data_ptr() % 16 == 0
    return isinstance(value, int) and not isinstance(value, bool) and value % 16 == 0
