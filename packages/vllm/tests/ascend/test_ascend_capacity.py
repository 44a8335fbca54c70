"""Banks at their bounds: captures, eager batches, indices."""

import random
from functools import partial
from typing import Any

import pytest
import torch
from ascend_double import HostDouble
from ascend_double.batches import BLOCK, Batch, common_metadata
from ascend_double.runner_v2 import DraftInputs
from ascend_double.scenario import addresses, concurrency, host, run, stock

from dsacp.core import CapacityError, LayoutError
from dsacp.graph import CpuTape
from dsacp.vllm.ascend.plugin import choose
from dsacp.vllm.ascend.roles import FIRST

MIXED = Batch("mixed", (30, 4, 1), (0, 300, 9), 35, 3, (True, False, False), (0, 0, 0))
LONGER = Batch("mixed", (50, 4, 1), (0, 300, 9), 55, 3, (True, False, False), (0, 0, 0))


def capture_of(tokens: int, double: HostDouble) -> Any:
    """Return what upstream's dummy run describes: K+1 tokens a request."""
    count = tokens // (double.drafts + 1)
    batch = Batch(
        "graph", (4,) * count, (0,) * count, tokens, count, (False,) * count, (0,) * count
    )
    return common_metadata(batch, double, random.Random(0))


def test_a_capture_beyond_the_bank_is_refused() -> None:
    """A graph of 32 tokens beside a bank of 17 rows would read a bank that the next build drops."""
    double = host()
    builder = double.builder(choose(stock()))
    builder.build_for_drafting(capture_of(16, double), 1, block_size=BLOCK)
    with pytest.raises(CapacityError, match="32 requests and 32 tokens.*cudagraph_capture_sizes"):
        builder.build_for_drafting(capture_of(32, double), 1, block_size=BLOCK)
    assert builder.dsacp_banks.eager == {}


@pytest.mark.parametrize("entry", ["build_for_graph_capture", "build_for_cudagraph_capture"])
def test_a_capture_of_a_whole_step_is_refused_likewise(entry: str) -> None:
    double = HostDouble(3, 4, 0, max_num_seqs=2, max_num_batched_tokens=8, capture_sizes=(8,))
    builder = double.builder(choose(stock()))
    common = capture_of(32, double)
    given = {"common_ratio_to_sas_metadata": {}, "block_size": BLOCK}
    build = partial(getattr(builder, entry), common)
    if entry == "build_for_graph_capture":
        build = partial(build, common.attn_state, **given)
    with pytest.raises(CapacityError, match="32 tokens"):
        build()


def test_an_eager_batch_reuses_its_bank() -> None:
    """A chunked prefill that drafts: its bank grows to the largest batch and is then kept."""
    double = host()
    builder = double.builder(choose(stock()))
    run(builder, double, concurrency())
    persistent = builder.dsacp_regions()
    first = [addresses(step) for step in run(builder, double, MIXED)[1:]]
    banks = builder.dsacp_banks.eager
    assert set(banks) == {FIRST + 1, FIRST + 2}, "steps of one round live side by side"
    again = [addresses(step) for step in run(builder, double, MIXED, seed=5)[1:]]
    longer = run(builder, double, LONGER)
    assert first == again
    assert builder.dsacp_banks.eager == banks, "within the next power of two"
    assert longer[1].req_metadata.cp_metadata.num_tokens_pad == 56
    assert builder.dsacp_regions() == persistent


def test_the_first_use_lies_before_any_capture() -> None:
    """A bank that is made while a graph is recorded would live in the graph's own memory."""
    double = HostDouble(4, 4, 0, max_num_seqs=16, max_num_batched_tokens=64)
    builder = double.builder(choose(stock()))
    builder.dsacp_drafts = True
    inputs = DraftInputs.of((99, 57, 8), 4, seed=3)
    with CpuTape(), pytest.raises(CapacityError, match="warm up first"):
        inputs.build(builder)
    inputs.build(builder)
    with CpuTape():
        step = inputs.build(builder)
    assert step.req_metadata.seq_lens.tolist() == [99, 57, 8, 0]


@pytest.mark.parametrize("capturing", [True, False])
def test_a_device_is_asked_whether_it_captures(
    capturing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dsacp.graph import is_recording

    monkeypatch.setattr(torch.npu, "is_current_stream_capturing", lambda: capturing, raising=False)
    assert is_recording(torch.device("meta")) is False
    monkeypatch.setattr(torch, "meta", torch.npu, raising=False)
    assert is_recording(torch.device("meta")) is capturing


@pytest.mark.parametrize("index", [-1, 0, 4, 7])
def test_a_draft_index_outside_of_k_is_refused(index: int) -> None:
    """Upstream raises for one past its lists; 0 would be the drafter's first pass."""
    double = host()
    builder = double.builder(choose(stock()))
    common = common_metadata(concurrency(), double, random.Random(0))
    with pytest.raises(LayoutError, match=f"draft index in 1..3 .K., found {index}"):
        builder.build_for_drafting(common, index, block_size=BLOCK)
    assert builder.dsacp_banks.made == {}
