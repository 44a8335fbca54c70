"""Every kernel at shapes around its blocks: compiled for an NPU, for a GPU, or interpreted.

A fixed sample of the shapes, and all of them under `-m slow`. The interpreter takes minutes for
what the others do in seconds, so it is left to the long runs as a whole.
"""

import importlib.util
import os

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    pytest.skip("the module triton is not installed", allow_module_level=True)
if not torch.cuda.is_available():
    # Read when a kernel module is imported, hence before any launch of this process.
    os.environ.setdefault("TRITON_INTERPRET", "1")

from shape_cases import OFTEN, SHAPES

GPU = torch.cuda.is_available()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if GPU else "cpu"


@pytest.mark.parametrize("name", OFTEN)
def test_a_sample_of_shapes(name: str) -> None:
    if INTERPRETED:
        pytest.skip("interpreted shapes take minutes: run `-m slow`")
    SHAPES[name].check("triton", DEVICE)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SHAPES if INTERPRETED or name not in OFTEN])
def test_the_other_shapes(name: str) -> None:
    SHAPES[name].check("triton", DEVICE)
