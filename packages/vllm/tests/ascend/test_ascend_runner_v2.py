"""Runner v2 (upstream U39): upstream's own call path, as far as the double carries it."""

import logging
import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ascend_double import HostDouble
from ascend_double.batches import BLOCK, Batch, common_metadata
from ascend_double.compare import Parity
from ascend_double.host import DRAFT_LAYER, MAX_MODEL_LEN
from ascend_double.runner_v2 import DraftInputs, build_target, modules, speculator
from ascend_double.scenario import addresses, stock
from torch import Tensor

from dsacp.graph import GraphGuard, capture
from dsacp.vllm.ascend.plugin import choose
from dsacp.vllm.ascend.runner_v2 import LATER, claim_drafts, hook_speculator

GRAPH = Batch("graph", (4, 4, 4), (96, 53, 5), 16, 4, (False,) * 3, (0, 0, 0))
EAGER = Batch("verify", (4, 4), (700, 3), 8, 2, (False,) * 2, (0, 0))


def double(rank: int = 0) -> HostDouble:
    return HostDouble(4, 4, rank, max_num_seqs=16, max_num_batched_tokens=64)


def drafting(host: HostDouble) -> tuple[Any, Any]:
    """Return the target's builder and the draft layers' own, claimed by upstream's speculator."""
    target, drafts = (host.builder(choose(stock()), layer=DRAFT_LAYER) for _ in range(2))
    claim_drafts(speculator(drafts, target))
    return target, drafts


@pytest.mark.parametrize("batch", [GRAPH, EAGER], ids=["full", "eager"])
@pytest.mark.parametrize("rank", [0, 1, 3])
def test_target_step(batch: Batch, rank: int) -> None:
    """Upstream asserts without the dictionary; ours is what upstream builds for runner v1."""
    host = double(rank)
    with pytest.raises(AssertionError):
        build_target(host.builder(stock()), common_metadata(batch, host, random.Random(1)))
    common = common_metadata(batch, host, random.Random(1))
    common.num_actual_tokens = batch.tokens  # runner v2 counts padding among them
    upstream = host.builder(stock()).build(
        0, common, num_reqs_actual=batch.rows, common_ratio_to_sas_metadata={}, block_size=BLOCK
    )
    ours = host.builder(choose(stock()))
    step = build_target(ours, common_metadata(batch, host, random.Random(1)))
    parity = Parity(host)
    parity.padded_tokens = batch.tokens
    real = len(batch.lengths)
    parity.check(upstream, step, sum(batch.lengths), real)
    assert set(ours.dsacp_banks.made) == {0}


def test_capture_entry_of_the_target() -> None:
    """``build_for_cudagraph_capture`` passes nothing but the batch; the replay's addresses fit."""
    host = double()
    ours = host.builder(choose(stock()))
    common = common_metadata(GRAPH, host, random.Random(1))
    captured = build_target(ours, common, for_cudagraph_capture=True)
    replayed = build_target(ours, common_metadata(GRAPH, host, random.Random(2)))
    assert addresses(captured).keys() >= {"local_seq_lens", "sas_metadata", "cos"}
    moved = {
        name
        for name, address in addresses(captured).items()
        if addresses(replayed)[name] != address
    }
    assert moved == {"block_table"}, "the runner's own table, persistent there, new in the double"


@pytest.mark.parametrize("with_positions", [True, False], ids=["0.26", "0.25"])
@pytest.mark.parametrize("rank", [0, 1])
def test_draft_steps_follow_the_lengths(rank: int, with_positions: bool) -> None:
    """One owner for steps 1..K-1: its own bank, one address, padding inert."""
    host = double(rank)
    target, drafts = drafting(host)
    build_target(target, common_metadata(GRAPH, host, random.Random(1)))
    before = [storage.clone() for storage in target.dsacp_storages()]
    inputs = DraftInputs.of((99, 57, 8), 4, seed=3)
    seen = []
    for step in range(1, host.drafts):
        metadata = inputs.build(drafts, with_positions)
        seen.append(addresses(metadata))
        request = metadata.req_metadata
        lengths = [98 + step, 56 + step, 7 + step, 0]
        assert request.seq_lens.tolist() == lengths
        assert request.input_positions.tolist() == [*(n - 1 for n in lengths[:3]), 0]
        assert request.slot_mapping[:, 0].tolist() == [
            *(int(inputs.table[row, (lengths[row] - 1) // BLOCK]) for row in range(3)),
            -1,
        ]
        local = request.cp_metadata
        mine = [length if row == rank else 0 for row, length in enumerate(lengths)]
        assert local.local_seq_lens.tolist() == mine
        inputs.advance()
    assert all(found == seen[0] for found in seen)
    assert set(drafts.dsacp_banks.made) == {LATER}
    assert all(map(torch.equal, before, target.dsacp_storages()))


def merged(drafts: Any, inputs: DraftInputs, steps: int) -> list[Tensor]:
    """Run the speculator's merged loop: a build, a model that reads it, the inputs go on."""
    read = []
    for _ in range(1, steps):
        request = inputs.build(drafts).req_metadata
        local = request.cp_metadata
        words = (local.local_query_start_loc, local.local_seq_lens, request.start_pos)
        tables = (request.slot_mapping.flatten(), request.block_table.flatten())
        read.append(torch.cat([*words, *tables, request.input_positions.int()]))
        read.append(local.local_cos["model.layers.0.attn"].flatten().clone())
        inputs.advance()
    return read


@pytest.mark.parametrize("rank", [0, 3])
def test_merged_graph_holds_the_builds(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The FULL graph of v2 records all K-1 builds; a replay follows the inputs' new values."""
    host = double(rank)
    # upstream's host lengths lie on the graph's device here, so making them looks like a copy
    lengths_on_host = torch.full((4,), MAX_MODEL_LEN, dtype=torch.int32)
    monkeypatch.setattr(torch, "from_numpy", lambda _array: lengths_on_host)
    _, drafts = drafting(host)
    inputs = DraftInputs.of((99, 57, 8), 4, seed=3)
    merged(drafts, inputs, host.drafts)
    guard = GraphGuard(drafts.dsacp_regions(), drafts.dsacp_storages())
    inputs.copy_(DraftInputs.of((1, 1, 1, 1), 4, seed=4))
    graph = capture(
        lambda: merged(drafts, inputs, host.drafts), device=torch.device("cpu"), guard=guard
    )
    for seed, lengths in enumerate([(500, 129, 40, 7), (2,), (3000, 4094)]):
        fresh = DraftInputs.of(lengths, 4, seed)
        inputs.copy_(fresh)
        graph.replay()
        replayed = [tensor.clone() for tensor in graph.output]
        guard.check()
        eager = merged(drafting(host)[1], fresh, host.drafts)
        assert len(eager) == 2 * (host.drafts - 1)
        for left, right in zip(eager, replayed, strict=True):
            assert torch.equal(left, right)


def test_upstreams_speculator_counts_on_our_metadata() -> None:
    """It reads lengths on the host after every step; upstream's dataclass has none there."""
    host = double()
    target, drafts = drafting(host)
    metadata = {DRAFT_LAYER: DraftInputs.of((99, 57, 8), 4, seed=3).build(drafts)}
    own = speculator(drafts, target)
    own.input_batch = SimpleNamespace(seq_lens_np=torch.tensor([99, 57, 8, 0]).numpy())
    on_device = metadata[DRAFT_LAYER].req_metadata.seq_lens.clone()
    own._ascend_update_seq_lens(metadata)
    own._update_decode_attn_metadata(metadata, 1, 3)
    assert metadata[DRAFT_LAYER].seq_lens_cpu.tolist() == [100, 58, 9, 0]
    assert torch.equal(metadata[DRAFT_LAYER].req_metadata.seq_lens, on_device)
    common = common_metadata(EAGER, host, random.Random(0))
    plain = host.builder(stock()).build(0, common, common_ratio_to_sas_metadata={})
    with pytest.raises(AttributeError, match="seq_lens_cpu"):
        own._update_decode_attn_metadata({DRAFT_LAYER: plain}, 1, 2)


def test_hook_claims_after_set_attn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Upstream's class keeps its ``set_attn``; draft builders are known when it returns."""
    module = modules().speculator
    cls = module.AscendAutoRegressiveSpeculator
    calls: list[Any] = []
    monkeypatch.setattr(cls, "set_attn", lambda self, *given: calls.append((self, given)))
    hook_speculator(module)
    host = double()
    target, drafts = (host.builder(choose(stock()), layer=DRAFT_LAYER) for _ in range(2))
    own = speculator(drafts, target)
    own.set_attn("state", "config")
    assert calls == [(own, ("state", "config"))]
    assert (drafts.dsacp_drafts, target.dsacp_drafts) == (True, False)


def test_shared_builder_stands_aside(caplog: pytest.LogCaptureFixture) -> None:
    """Target and draft steps of one instance cannot be told apart: one line, upstream's build."""
    host = double()
    shared = host.builder(choose(stock()), layer=DRAFT_LAYER)
    with caplog.at_level(logging.WARNING, logger="vllm.dsacp"):
        claim_drafts(speculator(shared, shared))
        with pytest.raises(AssertionError):
            build_target(shared, common_metadata(EAGER, host, random.Random(0)))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    assert "one builder for the target and the draft steps of runner v2" in lines[0]


@pytest.mark.parametrize("change", ["non-causal", "without positions"])
def test_unknown_steps_stand_aside(change: str, caplog: pytest.LogCaptureFixture) -> None:
    host = double()
    builder = host.builder(choose(stock()))
    common = common_metadata(EAGER, host, random.Random(0))
    if change == "non-causal":
        common.causal = False
    else:
        common.positions = None
    with caplog.at_level(logging.WARNING, logger="vllm.dsacp"):
        for _ in range(2):
            with pytest.raises(AssertionError):
                builder.build(0, common)
    lines = [record.getMessage() for record in caplog.records if change in record.getMessage()]
    assert len(lines) == 1
