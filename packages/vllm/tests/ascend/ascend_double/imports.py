"""Imports vllm-ascend's builder and proposer beside a vLLM that they were not made for.

Only what cannot load is replaced, by name, and nothing that a test calls is among it:
``vllm_ascend.ops`` keeps its modules and loses its ``__init__`` (which imports fused MoE layers);
the model and the runner's block table are modules of bare classes.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

WITHOUT_INIT = ("vllm_ascend.ops",)
BARE_CLASSES = {
    "vllm_ascend.models.deepseek_v4": (
        "DeepseekV2DecoderLayer",
        "DeepseekV2MixtureOfExperts",
        "DeepseekV4MoE",
    ),
    "vllm_ascend.worker.block_table": ("BlockTable", "MultiGroupBlockTable"),
    # a dataclass whose order of defaults does not fit the vLLM here
    "vllm_ascend.worker.v2.input_batch": ("AscendInputBuffers", "AscendInputBatch"),
    # renamed in the vLLM here; only a base class of the speculator whose own methods are run
    "vllm.v1.worker.gpu.spec_decode.autoregressive": (),
    "vllm.v1.worker.gpu.spec_decode.autoregressive.speculator": ("AutoRegressiveSpeculator",),
}


class _Replaced(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        if name in BARE_CLASSES:
            return importlib.machinery.ModuleSpec(name, self, is_package=not BARE_CLASSES[name])
        if name in WITHOUT_INIT:
            found = importlib.machinery.PathFinder.find_spec(name, path)
            assert found is not None, f"{name} is not installed"
            spec = importlib.machinery.ModuleSpec(name, self, is_package=True)
            spec.submodule_search_locations = found.submodule_search_locations
            return spec
        return None

    def create_module(
        self,
        spec: importlib.machinery.ModuleSpec,  # noqa: ARG002
    ) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        for name in BARE_CLASSES.get(module.__name__, ()):
            setattr(module, name, type(name, (), {}))


def install_finder() -> None:
    """Replace the modules above for this process."""
    sys.meta_path.insert(0, _Replaced())
