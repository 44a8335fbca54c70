"""Drive triton-ascend and bishengir to HIVM, without an NPU and without CANN.

CANN's closed ``hivmc`` is the next step; a stand-in on PATH keeps the text that it would get.
"""

import importlib.util
import os
import re
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launches import Launch
from linalg import faults

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
        stage: last stage reached: "none", "ttir", "ttadapter" or "hivm".
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
        text = _linalg(launch, arch)
    except subprocess.CalledProcessError as error:
        return Hivm("ttir", error.stderr.decode(errors="replace"))
    except Exception as error:
        return Hivm("none", f"{type(error).__name__}: {error}")
    with tempfile.TemporaryDirectory() as folder:
        return replace(_bisheng(text, arch, Path(folder)), faults=tuple(faults(text)))


def _linalg(launch: Launch, arch: str) -> str:
    from triton._C.libtriton import ir  # noqa: PLC0415 - only triton-ascend has these names
    from triton.backends import backends  # noqa: PLC0415
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415
    from triton.compiler.compiler import ASTSource  # noqa: PLC0415

    backend = backends["ascend"].compiler(GPUTarget("npu", arch, 0))
    source = ASTSource(fn=launch.kernel, signature=launch.signature, constants=launch.constants)
    options = backend.parse_options(dict(source.parse_options()))
    metadata: dict[str, Any] = {"hash": "offline", "target": backend.target, **options.__dict__}
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options)
    module = source.make_ir(
        options, backend.get_codegen_implementation(), backend.get_module_map(), context
    )
    return str(stages["ttadapter"](stages["ttir"](module, metadata), metadata))


def _bisheng(text: str, arch: str, folder: Path) -> Hivm:
    source, output, stand_in = folder / "k.mlir", folder / "k.hivm", folder / "hivmc"
    source.write_text(re.sub(r', mix_mode\s*=\s*"[^"]*"', "", text))
    stand_in.write_text(STAND_IN)
    stand_in.chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [_compiler(), str(source), f"--target={arch}", *OPTIONS, "-o", str(folder / "k")],
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


def _compiler() -> str:
    spec = importlib.util.find_spec("ascendnpuir")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("expected the package ascendnpu-ir, found none: install it")
    return str(Path(spec.submodule_search_locations[0], "bin", "bishengir-compile"))
