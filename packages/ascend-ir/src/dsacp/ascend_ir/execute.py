"""Run Triton launches as what the Ascend compilers make of them."""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from dsacp.ascend_ir.errors import LaunchError, MissingCompilerError, NotExecutedError
from dsacp.ascend_ir.job import Job, Order, Reach
from dsacp.ascend_ir.launch import Launch, bind
from dsacp.ascend_ir.library import library_of, runtime
from dsacp.ascend_ir.linalg import TARGET
from dsacp.ascend_ir.lower import Level
from dsacp.ascend_ir.memory import Guard
from dsacp.ascend_ir.tools import versions

MAX_PROGRAMS = 65_535
"""More programs in a grid are refused by triton-ascend's launcher."""


@dataclass(frozen=True)
class Executed:
    """A launch that ran.

    Attributes:
        kernel: its name.
        grid: programs along each axis.
        local_bytes: local memory of the program that took most of it, without any reuse.
        rewrites: operations of the kernel that rules rewrote.
    """

    kernel: str
    grid: tuple[int, int, int]
    local_bytes: int
    rewrites: tuple[str, ...]

    @property
    def programs(self) -> int:
        """Programs of the grid."""
        return math.prod(self.grid)


@dataclass
class Execution:
    """How launches are run, and those that ran."""

    level: Level
    guard: Guard | None
    order: Order
    target: str
    reach: Reach | None
    launches: list[Executed] = field(default_factory=list)


@contextmanager
def execute(
    level: Level = "linalg",
    guard: Guard | None = "end",
    order: Order = "forward",
    *,
    target: str = TARGET,
    reach: Reach | None = None,
) -> Iterator[Execution]:
    """Run every Triton launch inside as compiled Ascend code on this CPU, on tensors of the CPU.

    Nothing is written to a tensor by a launch that fails. Everything is launched in its own turn:
    what a device would do between launches is not part of this.

    Args:
        level: "linalg" runs what triton-ascend wrote, "hivm" what bishengir's pipelines made of it.
        guard: arguments lie between closed pages, their last ("end") or first ("start") byte right
            beside one, and every access is looked up, exactly at both ends. None runs on the
            tensors themselves and looks nothing up.
        order: of the programs; "shuffle" is the same in every run.
        target: NPU that is compiled for.
        reach: for kernels that read through addresses which a tensor holds.

    Raises:
        CompileError, LaunchError, MissingCompilerError, UnsupportedOpError: by a launch that cannot
            be run.
        MemoryFaultError: by a launch that touches what is not its own.
        NotExecutedError: by a launch that Triton's interpreter would run.
        RaceError: by a launch whose programs share a word.
        UninitialisedError: by a launch whose result depends on what local memory held before.
    """
    execution = Execution(level, guard, order, target, reach)
    with ExitStack() as stack:
        _intercept(stack, execution)
        yield execution


def preload() -> None:
    """Import and load what every launch needs, before processes are forked that would each do so.

    Raises:
        MissingCompilerError: a compiler is not installed, or not the proven version.
    """
    _triton()
    versions()
    runtime()


def _triton() -> tuple[Any, Any]:
    try:
        from triton.compiler import compiler  # noqa: F401, PLC0415 - as in `preload`
        from triton.runtime.interpreter import GridExecutor  # noqa: PLC0415
        from triton.runtime.jit import JITFunction  # noqa: PLC0415
    except ImportError:
        raise MissingCompilerError(
            "expected the module triton of triton-ascend, found none: install triton-ascend, "
            "ascendnpu-ir and pybind11"
        ) from None
    return JITFunction, GridExecutor


def _intercept(stack: ExitStack, execution: Execution) -> None:
    compiled, interpreted = _triton()

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
        _run(execution, kernel, args, kwargs, grid, warmup)

    def refuse(grid: Any, *_args: Any, **_kwargs: Any) -> None:
        raise NotExecutedError(
            f"expected a compiled launch of {grid.fn.__name__}, found Triton's interpreter: "
            "unset TRITON_INTERPRET before the kernel's module is imported"
        )

    stack.enter_context(patch.object(compiled, "run", run))
    stack.enter_context(patch.object(interpreted, "__call__", refuse))


def _run(
    execution: Execution,
    kernel: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    grid: Any,
    warmup: bool,
) -> None:
    values = bind(kernel, args, kwargs)
    launch = Launch.of(kernel, args, kwargs, specialise=True)
    if callable(grid):
        grid = grid({**values, **launch.constants})
    programs = programs_of(launch.name, grid)
    library = library_of(launch, execution.level, execution.target)
    if warmup:
        return
    order, reach = execution.order, execution.reach
    job = Job(execution.level, order, reach, launch, values, programs, library)
    peak = job.run_guarded(execution.guard) if execution.guard else job.run_in_place()
    execution.launches.append(Executed(launch.name, programs, peak, tuple(library.rewrites)))


def programs_of(name: str, grid: Sequence[int]) -> tuple[int, int, int]:
    """Return a grid's three sizes.

    Raises:
        LaunchError: a device would refuse it.
    """
    sizes = [*grid, 1, 1][:3]
    if len(grid) > 3 or min(sizes) < 0 or math.prod(sizes) > MAX_PROGRAMS:
        raise LaunchError(
            f"expected a grid of at most 3 axes and {MAX_PROGRAMS} programs for {name}, found "
            f"{tuple(grid)}: give a program more to do"
        )
    return sizes[0], sizes[1], sizes[2]
