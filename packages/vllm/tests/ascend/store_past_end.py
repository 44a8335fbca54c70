"""Runs upstream's own Triton kernel in Triton's interpreter, on buffers between guard words.

A process of its own: vLLM on a CPU hides Triton, so only its ``triton_utils`` is stood in for.
Prints how many guard words after the buffers were overwritten.
"""

import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton
from triton import language

GUARD = 0x5A5A_5A5A


def upstream_kernel() -> Any:
    """Load the kernel from the installed wheel's file."""
    tools = ModuleType("vllm.triton_utils")
    tools.tl, tools.triton = language, triton  # type: ignore[attr-defined]
    sys.modules["vllm"], sys.modules["vllm.triton_utils"] = ModuleType("vllm"), tools
    root = importlib.util.find_spec("vllm_ascend")
    assert root is not None
    assert root.submodule_search_locations is not None
    path = f"{root.submodule_search_locations[0]}/ops/triton/dsa_cp.py"
    spec = importlib.util.spec_from_file_location("upstream_dsa_cp", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.build_local_metadata_triton


def overwritten(rows: int, max_num_seqs: int) -> int:
    """Launch for ``rows`` requests into buffers of upstream's size; count lost guard words."""
    arena = torch.full((256,), GUARD, dtype=torch.int32)
    starts, lengths = arena[16 : 17 + max_num_seqs], arena[128 : 128 + max_num_seqs]
    starts.zero_()
    lengths.zero_()
    upstream_kernel()[(1,)](
        torch.arange(rows + 1, dtype=torch.int32),
        torch.full((rows,), 9, dtype=torch.int32),
        starts,
        lengths,
        0,
        4,
        rows,
        torch.zeros(1, dtype=torch.int32),
        BLOCK_NUM_REQS=triton.next_power_of_2(rows),
        COMPUTE_START_POS=False,
    )
    after = torch.cat([arena[17 + max_num_seqs : 128], arena[128 + max_num_seqs :]])
    return int((after != GUARD).sum())


if __name__ == "__main__":
    print(overwritten(int(sys.argv[1]), int(sys.argv[2])))
