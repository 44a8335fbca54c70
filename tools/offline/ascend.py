"""Drive triton-ascend and bishengir to HIVM, without an NPU and without CANN (upstream U54).

CANN's closed ``hivmc`` is the next step; a stand-in on PATH keeps the text that it would get.
"""

import os
import re
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from linalg import faults

from dsacp.ascend_ir import CompileError, Launch, linalg_of
from dsacp.ascend_ir.tools import bishengir

OPTIONS = (
    "--enable-auto-multi-buffer=True",
    "--enable-auto-bind-sub-block=True",
    "--enable-hfusion-compile=true",
    "--enable-hivm-compile=true",
    "--enable-triton-kernel-compile=true",
)
STAND_IN = """#!/bin/sh
for argument in "$@"; do
  [ "$argument" = --version ] && { echo "hivmc 0.2.0"; exit 0; }
done
cp "$1" "$HIVM_OUT"
"""


@dataclass(frozen=True)
class Hivm:
    """What the open compiler made of a kernel.

    Attributes:
        stage: last stage reached: "none", "ttadapter" or "hivm".
        error: the compiler's words where it stopped, else empty.
        scalar_loops: ``scf.for`` loops in the HIVM text; each is slow on a vector core.
        scalar_loads: loads of single words from global memory.
        inline_asm: whether PTX text is left, which nothing on Ascend runs.
        faults: what compiles, but to something else than the kernel asks for.
    """

    stage: str
    error: str = ""
    scalar_loops: int = 0
    scalar_loads: int = 0
    inline_asm: bool = False
    faults: tuple[str, ...] = ()


def compile_launch(launch: Launch, arch: str) -> Hivm:
    """Compile one launch as far as open tools go."""
    try:
        text = linalg_of(launch, arch)
    except CompileError as error:
        return Hivm("none", str(error))
    with tempfile.TemporaryDirectory() as folder:
        return replace(_bisheng(text, arch, Path(folder)), faults=tuple(faults(text)))


def _bisheng(text: str, arch: str, folder: Path) -> Hivm:
    source, output, stand_in = folder / "k.mlir", folder / "k.hivm", folder / "hivmc"
    source.write_text(re.sub(r', mix_mode\s*=\s*"[^"]*"', "", text))
    stand_in.write_text(STAND_IN)
    stand_in.chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    compiler = bishengir("bishengir-compile")
    done = subprocess.run(
        [compiler, source, f"--target={arch}", *OPTIONS, "-o", folder / "k"],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PATH": path, "HIVM_OUT": str(output)},
        check=False,
    )
    if not output.exists():
        return Hivm("ttadapter", done.stdout + done.stderr)
    hivm = output.read_text()
    return Hivm(
        stage="hivm",
        scalar_loops=hivm.count("scf.for"),
        scalar_loads=len(re.findall(r"memref\.load .*address_space<gm>", hivm)),
        inline_asm="llvm.inline_asm" in hivm,
    )
