"""A launch as a shared library of this machine."""

import ctypes
import json
import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dsacp.ascend_ir import cache as store
from dsacp.ascend_ir import tools
from dsacp.ascend_ir.checked import check_accesses
from dsacp.ascend_ir.errors import LaunchError, MissingCompilerError
from dsacp.ascend_ir.launch import Launch
from dsacp.ascend_ir.linalg import TARGET, linalg_of
from dsacp.ascend_ir.lower import Level, Lowered, lower

_TRIPLES = {
    "x86_64": ("x86_64-unknown-linux-gnu", "x86-64"),
    "aarch64": ("aarch64-unknown-linux-gnu", "generic"),
}
LARGE = 2_000_000
"""Bytes of a module's text from which it is not optimised."""
_LOADED: dict[Path, "Library"] = {}


@dataclass(frozen=True)
class Library:
    """A compiled kernel.

    Attributes:
        call: its C interface: descriptors by address, numbers by value.
        sites: source line of every access by number.
        rewrites: operations that rules rewrote.
    """

    call: Callable[..., None]
    sites: list[str]
    rewrites: list[str]


def library_of(launch: Launch, level: Level, target: str = TARGET) -> Library:
    """Return a launch's library, from the cache where it was compiled before.

    Raises:
        CompileError: a compiler refused the kernel.
        MissingCompilerError: a compiler, or ``cc``, is not installed.
        UnsupportedOpError: it holds an operation that is not known here.
    """
    code = launch.kernel.fn.__code__
    key = (
        (launch.kernel.cache_key, code.co_filename, launch.name),
        (sorted(launch.signature.items()), sorted(launch.aligned)),
        sorted((name, repr(value)) for name, value in launch.constants.items()),
        (level, target, tools.versions(), platform.machine()),
    )

    def make(folder: Path) -> None:
        build(lower(linalg_of(launch, target), level, target, folder), launch.name, folder)

    return load(store.entry(key, make))


def load(folder: Path) -> Library:
    """Load a library that was built into ``folder``."""
    if folder not in _LOADED:
        runtime()  # before a kernel that calls it
        facts = json.loads((folder / "facts.json").read_text())
        loaded = ctypes.CDLL(str(folder / "kernel.so"))
        call: Any = getattr(loaded, f"_mlir_ciface_{facts['name']}")
        call.restype = None
        _LOADED[folder] = Library(call, facts["sites"], facts["rewrites"])
    return _LOADED[folder]


@cache
def runtime() -> ctypes.CDLL:
    """Return the runner's library, whose functions kernels call.

    Raises:
        LaunchError: there is no address space for its memory.
        MissingCompilerError: there is no C compiler.
    """

    def make(folder: Path) -> None:
        source = Path(__file__).with_name("runtime.c")
        _link(folder / "runtime.so", source, "-O2")

    found = store.entry(("runtime", platform.machine()), make)
    library = ctypes.CDLL(str(found / "runtime.so"), mode=ctypes.RTLD_GLOBAL)
    library.ascend_ir_place.restype = ctypes.c_uint64
    library.ascend_ir_place.argtypes = [
        ctypes.c_char_p, ctypes.c_uint64, ctypes.c_int, ctypes.c_int
    ]  # fmt: skip
    library.ascend_ir_program.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_int]
    library.ascend_ir_peak.restype = ctypes.c_uint64
    if library.ascend_ir_init():
        raise LaunchError(
            "expected 5 TiB of address space, none of it used, found less: raise `ulimit -v`"
        )
    return library


def build(lowered: Lowered, name: str, folder: Path) -> None:
    """Write a kernel's library into ``folder``, for ``load``."""
    checked = check_accesses(lowered.text)
    source, assembly = folder / "checked.mlir", folder / "kernel.s"
    source.write_text(checked.text)
    assembly.write_text(_assembly(source))
    _link(folder / "kernel.so", assembly)
    facts = {"name": name, "sites": checked.sites, "rewrites": lowered.rewrites}
    (folder / "facts.json").write_text(json.dumps(facts))
    for path in folder.glob("*.[0-9a-z]*"):
        if path.name not in ("kernel.so", "facts.json"):
            path.unlink()


def _assembly(source: Path) -> str:
    from triton._C.libtriton import ir, llvm  # noqa: PLC0415 - only where Triton is

    llvm.init_targets()
    context = ir.context()
    ir.load_dialects(context)
    module = ir.parse_mlir_module(str(source), context)
    module.context = context
    inner = llvm.context()
    host = llvm.to_module(module, inner)
    # LLVM takes minutes over functions of many thousand blocks, to save little in their run
    large = source.stat().st_size > LARGE
    llvm.optimize_module(host, llvm.OPTIMIZE_O0 if large else llvm.OPTIMIZE_O2)
    triple, processor = _TRIPLES[platform.machine()]
    return str(llvm.translate_to_asm(str(host), triple, processor, "", [], False, False))


def _link(target: Path, source: Path, *options: str) -> None:
    try:
        tools.run("linking", "cc", *options, "-shared", "-fPIC", "-o", target, source, "-lm")
    except FileNotFoundError:
        raise MissingCompilerError(
            "expected a C compiler as `cc`, found none: install one"
        ) from None
