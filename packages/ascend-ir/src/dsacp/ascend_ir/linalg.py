"""From a launch to the `linalg` text that triton-ascend writes, with the source lines in it."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dsacp.ascend_ir.errors import CompileError, MissingCompilerError
from dsacp.ascend_ir.launch import Launch

TARGET = "Ascend910B3"
"""What is compiled for where nobody says otherwise."""


def linalg_of(launch: Launch, target: str = TARGET) -> str:
    """Return triton-ascend's `linalg` form of a launch.

    Raises:
        CompileError: Triton or triton-ascend refused the kernel.
        MissingCompilerError: triton-ascend is not installed.
    """
    with _line_info():
        try:
            return _compile(launch, target)
        except subprocess.CalledProcessError as error:
            said = (error.stderr or b"").decode(errors="replace").strip()
            found = f"exit {error.returncode}: {said[:3000]}"
        except MissingCompilerError:
            raise
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
    raise CompileError(f"expected triton-ascend to take the kernel {launch.name}, found {found}")


def _compile(launch: Launch, target: str) -> str:
    backends = _backends()
    from triton._C.libtriton import ir  # noqa: PLC0415 - no other Triton has all of these names
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415
    from triton.compiler.compiler import ASTSource  # noqa: PLC0415

    backend = backends["ascend"].compiler(GPUTarget("npu", target, 0))
    source = ASTSource(launch.kernel, launch.signature, launch.constants, _hints(launch, backend))
    options = backend.parse_options(launch.options)
    metadata: dict[str, Any] = {"hash": "ir", "target": backend.target, **options.__dict__}
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options)
    module = source.make_ir(
        options, backend.get_codegen_implementation(), backend.get_module_map(), context
    )
    return str(stages["ttadapter"](stages["ttir"](module, metadata), metadata))


def _backends() -> Any:
    try:
        from triton.backends import backends  # noqa: PLC0415
    except ImportError:
        backends = {}
    if "ascend" not in backends:
        found = ", ".join(backends) or "no Triton"
        raise MissingCompilerError(
            f"expected a Triton with the back end ascend, found {found}: "
            "install triton-ascend into an environment without upstream's triton"
        )
    return backends


def _hints(launch: Launch, backend: Any) -> Any:
    names = list(launch.kernel.arg_names)
    hints = backend.get_attrs_descriptor(None, None)
    hints.arg_properties["tt.divisibility"] = sorted(names.index(n) for n in launch.aligned)
    hints.arg_properties["tt.equal_to"] = []
    return hints


@contextmanager
def _line_info() -> Iterator[None]:
    """Make triton-ascend print locations, which it leaves out by default."""
    name = "TRITON_DISABLE_LINE_INFO"
    before = os.environ.get(name)
    os.environ[name] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
