"""The recorded batches of upstream's planner, planned on a CUDA device."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dsacp.kernels import plan_table, sas_plan
from dsacp.sas_metadata import SasPolicy, SasSpec, decode_sas, plan_sas

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

DEVICE = "cuda"
POLICIES: list[SasPolicy] = ["upstream", "balanced"]
VECTORS = Path(__file__).parent / "data" / "sas_planner.jsonl"


def load() -> list[tuple[SasSpec, Tensor, Tensor, list[tuple[int, int]]]]:
    """Return the specification, starts and lengths int32 on the CPU, and recorded ends of each."""
    loaded = []
    for line in VECTORS.read_text().splitlines():
        vector: dict[str, Any] = json.loads(line)
        names = ("num_heads", "family", "num_cores", "window_left", "window_right", "cmp_ratio")
        spec = SasSpec(*(vector[name] for name in names), vector["cmp_topk"])
        starts, lens = (
            torch.tensor(vector[name], dtype=torch.int32)
            for name in ("query_start_loc", "seq_lens")
        )
        loaded.append((spec, starts, lens, [tuple(end) for end in vector["range_ends"]]))
    return loaded


@pytest.mark.parametrize("policy", POLICIES)
def test_recorded_batches_on_the_device(policy: SasPolicy) -> None:
    """Word for word as on the CPU, and upstream's ranges as recorded."""
    vectors = load()
    assert len(vectors) == 200
    for spec, starts, lens, ends in vectors:
        expected = plan_sas(spec, starts, lens, policy=policy)
        words = plan_sas(spec, starts.to(DEVICE), lens.to(DEVICE), policy=policy)
        assert words.tolist() == expected.tolist(), spec
        if policy == "upstream":
            assert [item.end for item in decode_sas(words.cpu(), spec)] == ends, spec


@pytest.mark.parametrize("policy", POLICIES)
def test_all_recorded_batches_in_one_table(policy: SasPolicy) -> None:
    rows, inputs = [], torch.empty(0, dtype=torch.int32)
    for index, (spec, starts, lens, _) in enumerate(load()):
        at = inputs.numel(), inputs.numel() + starts.numel(), 1024 * index
        rows.append(spec.plan_row(*at, lens.numel(), policy))
        inputs = torch.cat([inputs, starts, lens])
    expected = torch.empty(1024 * len(rows), dtype=torch.int32)
    sas_plan(inputs, inputs, expected, plan_table(rows))
    found, moved = torch.full_like(expected, 0x7FFFFFFF).to(DEVICE), inputs.to(DEVICE)
    sas_plan(moved, moved, found, plan_table(rows, DEVICE))
    assert torch.equal(found.cpu(), expected)
