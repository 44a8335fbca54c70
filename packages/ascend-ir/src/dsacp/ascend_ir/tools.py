"""The compilers' programs: where they are, what version they have, and how they are run."""

import importlib.metadata
import importlib.util
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from dsacp.ascend_ir.errors import CompileError, MissingCompilerError

PROVEN = {"triton-ascend": "3.2.0", "ascendnpu-ir": "1.2.0"}
"""The versions whose output the rules were written for."""

_INSTALL = "install it, and pybind11, into an environment without upstream's triton"


def bishengir(name: str = "bishengir-opt") -> Path:
    """Return a program of the package ascendnpu-ir.

    Raises:
        MissingCompilerError: the package is not installed.
    """
    spec = importlib.util.find_spec("ascendnpuir")
    if spec is None or not spec.submodule_search_locations:
        raise MissingCompilerError(f"expected the package ascendnpu-ir, found none: {_INSTALL}")
    return Path(spec.submodule_search_locations[0], "bin", name)


@cache
def versions() -> tuple[str, ...]:
    """Return "name version" of both compilers, after making sure that they are the proven ones.

    Raises:
        MissingCompilerError: one is absent, or another version.
    """
    found = []
    for name, proven in PROVEN.items():
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            raise MissingCompilerError(
                f"expected {name} {proven}, found none: {_INSTALL}"
            ) from None
        if version != proven:
            raise MissingCompilerError(f"expected {name} {proven}, found {version}: {_INSTALL}")
        found.append(f"{name} {version}")
    return tuple(found)


def run(stage: str, *command: str | Path) -> None:
    """Run a program, and raise what it said if it fails.

    Raises:
        CompileError: with the stage's name.
    """
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileError(
            f"expected {stage} to succeed, found exit {done.returncode} of {Path(words[0]).name}: "
            f"{done.stderr.strip()[:3000]}"
        )


def passes(stage: str, source: Path, target: Path, options: Iterable[str], generic: bool) -> str:
    """Run passes of ``bishengir-opt`` over a file, and return the text with locations."""
    form = ["--mlir-print-op-generic"] if generic else []
    allow = ["--allow-unregistered-dialect", "--mlir-print-debuginfo"]
    run(stage, bishengir(), source, *options, *form, *allow, "-o", target)
    return target.read_text()
