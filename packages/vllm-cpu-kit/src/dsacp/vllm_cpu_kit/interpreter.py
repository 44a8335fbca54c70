"""Triton's interpreter as vLLM's Triton on a CPU: slow, and enough for the V2 model runner.

PyPI's Triton has no CPU backend, so vLLM switches Triton off and refuses V2. A stub backend named
"cpu" tells vLLM that kernels can be launched; the interpreter then runs them.
"""

import os
import sys
from pathlib import Path
from typing import Any

INTERPRET_VARIABLE = "DSACP_KIT_INTERPRET"

_STARTUP = f"""import os
if os.environ.get({INTERPRET_VARIABLE!r}) == "1":
    from dsacp.vllm_cpu_kit.interpreter import enable
    enable()
"""


def enable() -> None:
    """Add the stub backend; before vLLM is imported in this process.

    Raises:
        RuntimeError: vLLM was imported already and has decided about Triton.
    """
    if "vllm.triton_utils" in sys.modules:
        raise RuntimeError(
            "expected to run before vLLM is imported, found it imported: call enable() first, or "
            "start the process with the environment of `child_environment`"
        )
    os.environ["TRITON_INTERPRET"] = "1"
    from triton.backends import Backend, backends

    backends["cpu"] = Backend(_NoCompiler, _interpreter_driver())


class _NoCompiler:
    """Tells inductor, which asks every backend, that nothing can be compiled for a target."""

    @staticmethod
    def supports_target(_target: Any) -> bool:
        return False


def _interpreter_driver() -> type[Any]:
    from triton.backends.driver import DriverBase

    class InterpreterDriver(DriverBase):  # type: ignore[misc]
        """Answers what launchers ask for on the host."""

        @classmethod
        def is_active(cls) -> bool:
            return True

        def map_python_to_cpp_type(self, ty: str) -> str:
            return ty

        def get_current_target(self) -> Any:
            from triton.backends.compiler import GPUTarget

            return GPUTarget("cpu", 0, 1)

        def get_active_torch_device(self) -> Any:
            import torch

            return torch.device("cpu")

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, _device: int) -> int:
            return 0

        def get_benchmarker(self) -> Any:
            raise RuntimeError("interpreted kernels are not benchmarked")

    return InterpreterDriver


def child_environment(folder: Path) -> dict[str, str]:
    """Return variables that make every Python started with them call ``enable`` first.

    Args:
        folder: a directory of its own, where a start-up file is written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(_STARTUP)
    path = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {INTERPRET_VARIABLE: "1", "PYTHONPATH": os.pathsep.join(path)}
