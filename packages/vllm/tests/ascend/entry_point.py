"""Registers the plug-in as vLLM does, before vllm-ascend is imported, then asks for a builder.

A process of its own: in the tests' process everything is imported. Prints what happened as JSON.
"""

import importlib
import json
import sys
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent))

from ascend_double import HostDouble
from ascend_double.imports import install_finder
from ascend_double.npu import install_torch_npu
from ascend_double.ops import install_ops


def main() -> None:
    """Print which modules the plug-in imported early, and what the backend then gives."""
    importlib.import_module("vllm.v1.worker.gpu_model_runner")
    install_torch_npu()
    install_finder()
    library = install_ops()
    importlib.import_module("dsacp.vllm").register()
    early = sorted(name for name in sys.modules if name.startswith("vllm_ascend"))
    backend = importlib.import_module("vllm_ascend.attention.dsa_v1").AscendDSABackend
    proposers = vars(importlib.import_module("vllm_ascend.spec_decode.llm_base_proposer"))
    utils = importlib.import_module("vllm_ascend.utils")
    config = HostDouble().config
    with (
        mock.patch("vllm.config.get_current_vllm_config", return_value=config),
        mock.patch.object(utils, "enable_sp", return_value=True),
    ):
        builder, impl = backend.get_builder_cls(), backend.get_impl_cls()
    advancing = [
        cls for cls in proposers.values() if hasattr(cls, "attn_update_stack_num_spec_norm")
    ]
    found = {
        "early": early,
        "builder": [cls.__name__ for cls in builder.__mro__[:3]],
        "no_op": hasattr(impl, "update_graph_params"),
        "wrapped": any(hasattr(cls.initialize_attn_backend, "__wrapped__") for cls in advancing),
        "library": library is not None,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
