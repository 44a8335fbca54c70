"""``dsacp doctor`` beside an installed vllm-ascend."""

import gc
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from ascend_double import HostDouble, install
from ascend_double.batches import BLOCK, COLUMNS, Batch, common_metadata
from ascend_double.host import DRAFT_LAYER, ROPE_DIM
from ascend_double.ops import CALLS
from ascend_double.scenario import concurrency, run, stock

from dsacp.app.doctor import exit_code
from dsacp.app.doctor.machine import FLASHCOMM, hook_findings, installed
from dsacp.app.doctor.memory import ascend_bytes
from dsacp.app.doctor.probe import reasons
from dsacp.vllm.ascend import memory
from dsacp.vllm.ascend.plugin import choose

HERE = Path(__file__).parent


def test_probe_finds_every_hook() -> None:
    install()
    assert reasons("vllm-ascend") == []
    assert reasons("vllm") == []


def test_probe_runs_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The branch in which the engine imports: the stand-in lies where torch_npu would."""
    paths = [str(HERE / "doctor_site"), *sys.path]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    found = hook_findings(installed())
    assert [(finding.level, finding.text) for finding in found] == [
        ("ok", "every hook fits the installed vllm-ascend")
    ]
    assert exit_code({"hooks": found}, strict=True) == 0


def test_probe_names_what_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(self: Any, query_start_loc: Any) -> None:
        """Stands for a later version's signature."""

    monkeypatch.setattr(stock(), "_build_qli_metadata", plan)
    (reason,) = reasons("vllm-ascend")
    assert "_build_qli_metadata(self, query_start_loc)" in reason


@pytest.mark.parametrize("switched_on", [False, True])
def test_command_without_an_npu(switched_on: bool) -> None:
    """The host is described, what is missing is named, and a script can tell."""
    env = {**os.environ, FLASHCOMM: "1" if switched_on else ""}
    command = [sys.executable, "-m", "dsacp.app", "doctor", "--max-num-seqs", "6"]
    answer = subprocess.run(
        [*command, "--max-num-batched-tokens", "64", "--tp", "4", "--capture-sizes", "16"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 1, answer.stderr
    assert f"vllm-ascend {installed()['vllm-ascend']}" in answer.stdout
    assert ("PROBLEM VLLM_ASCEND_ENABLE_FLASHCOMM1" in answer.stdout) is not switched_on
    assert "PROBLEM vllm-ascend without torch-npu cannot start" in answer.stdout
    assert "PROBLEM vllm-ascend does not import here" in answer.stdout
    assert "hooks not checked: ModuleNotFoundError: No module named 'torch_npu'" in answer.stdout
    assert "16 one-token requests while max_num_seqs is 6" in answer.stdout
    assert answer.stdout.splitlines()[-1].endswith("1 warnings")


def live() -> dict[int, int]:
    """Return the bytes of every storage that a live tensor uses."""
    gc.collect()
    tensors = [found for found in gc.get_objects() if type(found) is torch.Tensor]
    return {
        tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors
    }


@pytest.mark.parametrize(("drafts", "tp", "captures"), [(3, 4, (16,)), (2, 1, (8, 40)), (1, 3, ())])
def test_memory_is_what_the_builders_allocate(
    drafts: int, tp: int, captures: tuple[int, ...]
) -> None:
    """Counted from live storages, target's step and all draft steps done, in a draft group."""
    double = HostDouble(
        drafts, tp, 0, max_num_seqs=6, max_num_batched_tokens=64, capture_sizes=captures
    )
    k1 = drafts + 1
    batch = Batch("verify", (k1, k1), (9, 70), 2 * k1, 2, (False,) * 2, (0, 0))
    builder = double.builder(choose(stock()), layer=DRAFT_LAYER)
    before = live()
    common = common_metadata(batch, double, random.Random(0))
    given = {"common_ratio_to_sas_metadata": {}, "block_size": BLOCK}
    builder.build(0, common, num_reqs_actual=2, **given)
    run(builder, double, batch)
    del common, given
    CALLS.clear()  # the double keeps copies of what the ops were asked
    held = sum(size for key, size in live().items() if key not in before)
    capacity = builder.dsacp_banks.capacity
    expected = memory.group_bytes(
        capacity, memory.draft_roles(drafts), [ROPE_DIM, ROPE_DIM], COLUMNS
    )
    assert held == expected > 0


def test_the_command_counts_what_the_builder_counts() -> None:
    """Its bounds, with the sizes as given, are those of the builder; tables by max_model_len."""
    double = HostDouble(3, 4, 0, max_num_seqs=6, max_num_batched_tokens=64, capture_sizes=(16,))
    builder = double.builder(choose(stock()), layer=DRAFT_LAYER)
    run(builder, double, concurrency())
    model = {"compress_rope_theta": 160000, "qk_rope_head_dim": ROPE_DIM}
    length = COLUMNS * BLOCK
    drafts, target = ascend_bytes(builder.dsacp_banks.capacity, model, length)
    made = builder.dsacp_banks.made
    assert drafts == target + sum(bank.nbytes for bank in made.values())
