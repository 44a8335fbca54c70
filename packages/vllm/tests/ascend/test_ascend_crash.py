"""The crash, reproduced: upstream's builder fails in the double, ours passes the same."""

import random
from dataclasses import fields
from typing import Any

import pytest
import torch
from ascend_double import HostDouble, install
from ascend_double.batches import BLOCK, STALE, Batch, advance, common_metadata, sampled_positions
from torch import Tensor

from dsacp.graph import GraphGuard
from dsacp.vllm.ascend.plugin import choose

GUARD = 0x5A5A_5A5A


def concurrency(
    contexts: tuple[int, ...] = (96, 53, 5), rejected: tuple[int, ...] = (0, 0, 0)
) -> Batch:
    """Return three verify requests in a captured bucket of 16 tokens, K=3 (vllm-ascend #16168)."""
    return Batch("graph", (4, 4, 4), contexts, 16, 4, (False,) * 3, rejected)


def host(tp: int = 4, rank: int = 0) -> HostDouble:
    return HostDouble(3, tp, rank, max_num_seqs=6, max_num_batched_tokens=64, capture_sizes=(16,))


def stock() -> type[Any]:
    cls: type[Any] = install().dsa_cp.AscendDSACPMetadataBuilder
    return cls


def run(builder: Any, double: HostDouble, batch: Batch, seed: int = 0) -> list[Any]:
    """Build the drafter's K steps as upstream's proposer does; returns their metadata."""
    common = common_metadata(batch, double, random.Random(seed))
    steps = [builder.build(0, common, None, common_ratio_to_sas_metadata={}, block_size=BLOCK)]
    proposer, positions = double.proposer(builder), sampled_positions(batch, common).clone()
    for index in range(1, double.drafts):
        common, metadata = advance(proposer, index, common, batch, positions)
        steps.append(metadata)
    return steps


def addresses(metadata: Any) -> dict[str, int]:
    """Return the address of every tensor that attention reads in a draft step."""
    found = {}
    for owner in (metadata.req_metadata, metadata.req_metadata.cp_metadata):
        for field in fields(owner):
            value = getattr(owner, field.name)
            if isinstance(value, Tensor) and value.numel():
                found[field.name] = value.data_ptr()
            elif type(value).__name__.endswith(("RopeDataProxy", "BankedRope")):
                found[field.name] = value["model.layers.0.attn"].data_ptr()
    return found


def test_sixteen_rows_against_six() -> None:
    """vllm-ascend #16168: a bucket of 16 tokens gives 16 one-token requests, max_num_seqs is 6."""
    double, batch = host(), concurrency()
    with pytest.raises(RuntimeError, match=r"\(6\).*\(16\)"):
        run(double.builder(stock()), double, batch)
    steps = run(double.builder(choose(stock())), double, batch)
    for index, step in enumerate(steps[1:], start=1):
        local = step.req_metadata.cp_metadata
        assert step.req_metadata.query_start_loc.tolist() == list(range(17))
        expected = [c + 3 + index + 1 for c in batch.contexts] + [0] * 13
        assert step.req_metadata.seq_lens.tolist() == expected
        assert local.local_query_start_loc.tolist() == [0, 1, 2, 3, *[4] * 13]
        assert local.local_seq_lens.tolist() == expected[:3] + [0] * 13
        assert step.req_metadata.block_table.shape[0] == 16


def test_addresses_of_draft_steps_move() -> None:
    """vllm-ascend #12599: draft steps return clones, so a captured graph reads freed memory."""
    double = HostDouble(3, 2, 0, max_num_seqs=64, max_num_batched_tokens=64)
    junk = []
    moved: dict[str, set[str]] = {}
    for name, cls in (("upstream", stock()), ("ours", choose(stock()))):
        builder = double.builder(cls)
        first = [addresses(step) for step in run(builder, double, concurrency())]
        kept = builder.__dict__.setdefault("_kept", [])
        moved[name] = set()
        for seed in range(3):
            junk += [torch.empty(64, dtype=torch.int32) for _ in range(100)]
            steps = run(builder, double, concurrency((200 + seed, 9, 1)), seed)
            kept.append(steps)
            for before, step in zip(first[1:], steps[1:], strict=True):
                after = addresses(step)
                moved[name] |= {key for key in before if before[key] != after[key]}
    expected = {"local_query_start_loc", "local_seq_lens", "sas_metadata", "cos", "sin"}
    assert expected | {"local_cos", "local_sin", "input_positions"} <= moved["upstream"]
    assert moved["ours"] == set()


def test_write_past_the_end() -> None:
    """EZ9999 of #16168: upstream's kernel stores one entry a request, whatever the buffer holds."""
    double, batch = host(), concurrency()
    common = common_metadata(batch, double, random.Random(0))
    rows = common.num_input_tokens
    arena = torch.full((64,), GUARD, dtype=torch.int32)
    builder = double.builder(stock())
    capacity = builder.spec_local_seq_lens[0].shape[0]
    assert (capacity, rows) == (6, 16)
    # what the device kernel does with these arguments: a masked store of num_reqs entries
    arena[:rows] = 0
    assert (arena[capacity:rows] != GUARD).all(), "sixteen stores into a buffer of six"
    ours = double.builder(choose(stock()))
    run(ours, double, batch)
    guard = GraphGuard(ours.dsacp_regions(), ours.dsacp_storages())
    for seed in range(4):
        run(ours, double, concurrency((1 + seed, 300, 2)), seed)
        guard.check()


def test_rope_padding_moves_and_zeroes() -> None:
    """vLLM #29036's kind: tokens that do not divide by tp make upstream pad into new tensors."""
    double = HostDouble(3, 3, 2, max_num_seqs=64, max_num_batched_tokens=66)
    batch = Batch("verify", (4, 4), (10, 20), 8, 2, (False,) * 2, (0, 0))
    for cls, stable in ((stock(), False), (choose(stock()), True)):
        builder = double.builder(cls)
        seen = []
        for seed in range(2):
            common = common_metadata(batch, double, random.Random(seed))
            step = builder.build(
                0, common, num_reqs_actual=2, common_ratio_to_sas_metadata={}, block_size=BLOCK
            )
            seen.append(step)
        pair = [step.req_metadata.cp_metadata.local_cos["model.layers.0.attn"] for step in seen]
        assert (pair[0].data_ptr() == pair[1].data_ptr()) is stable
        # rank 2 owns tokens 6, 7 and one of padding
        assert pair[1].shape[0] == 3
        padding = pair[1][2].unique().tolist()
        assert padding == ([1.0] if stable else [0.0])


def test_start_positions_of_padding_are_negative() -> None:
    """B.5: ``S - q`` of a padded row is -1 upstream; ours clamps at 0."""
    double = HostDouble(3, 2, 0, max_num_seqs=64, max_num_batched_tokens=64)
    upstream = run(double.builder(stock()), double, concurrency())
    ours = run(double.builder(choose(stock())), double, concurrency())
    for index in (1, 2):
        assert upstream[index].req_metadata.start_pos[3:].tolist() == [-1] * 13
        assert ours[index].req_metadata.start_pos[3:].tolist() == [0] * 13
        assert (
            ours[index].req_metadata.start_pos[:3] == upstream[index].req_metadata.start_pos[:3]
        ).all()


def test_no_update_graph_params() -> None:
    """Spec ascend 4.2: the draft path calls it after every FULL replay."""
    modules = install()
    choose(stock())
    assert not any(
        "update_graph_params" in vars(base) for base in modules.dsa_cp.AscendDSACPImpl.__mro__[1:]
    )
    assert modules.dsa_cp.AscendDSACPImpl.update_graph_params("stream", None, 16, None) is None


def test_lengths_count_rejected_tokens() -> None:
    """Deliberate difference: upstream's later steps see lengths that include rejected tokens."""
    double = HostDouble(3, 2, 0, max_num_seqs=64, max_num_batched_tokens=64)
    batch = concurrency(rejected=(2, 0, 3))
    upstream = run(double.builder(stock()), double, batch)
    ours = run(double.builder(choose(stock())), double, batch)
    for index in (1, 2):
        left, right = (steps[index].req_metadata for steps in (upstream, ours))
        assert (left.seq_lens[:3] - right.seq_lens[:3]).tolist() == [2, 0, 3]
        assert torch.equal(left.input_positions[:3] + 1, right.seq_lens[:3].long())


def test_stale_positions_do_not_rotate_padding() -> None:
    """Deliberate difference: padding is not rotated, upstream takes the buffer's last tail."""
    double = HostDouble(3, 2, 1, max_num_seqs=64, max_num_batched_tokens=64)
    upstream = run(double.builder(stock()), double, concurrency())
    ours = run(double.builder(choose(stock())), double, concurrency())
    left, right = upstream[0].req_metadata, ours[0].req_metadata
    assert left.input_positions[12:].tolist() == [STALE] * 4
    assert right.input_positions[12:].tolist() == [0] * 4
    assert (right.cos["model.layers.0.attn"][12:] == 1).all()
    assert (right.sin["model.layers.0.attn"][12:] == 0).all()


def test_capture_has_the_shape_of_its_replays() -> None:
    """Spec ascend 4.6: upstream captures 4 requests and replays 16; ours captures the 16."""
    double, batch = host(), concurrency()
    builder = double.builder(choose(stock()))
    common = common_metadata(batch, double, random.Random(0))
    common.num_actual_tokens = batch.tokens
    captured = [builder.build_for_drafting(common, k, block_size=BLOCK) for k in (1, 2)]
    assert captured[0].req_metadata.slot_mapping.tolist() == [[-1, BLOCK - 1]] * 16
    assert captured[0].req_metadata.seq_lens.tolist() == [0] * 16
    replayed = run(builder, double, batch)[1:]
    for before, after in zip(captured, replayed, strict=True):
        for name in ("seq_lens", "query_start_loc", "block_table", "sas_metadata", "start_pos"):
            pair = getattr(before.req_metadata, name), getattr(after.req_metadata, name)
            assert pair[0].data_ptr() == pair[1].data_ptr(), name
            assert pair[0].shape == pair[1].shape, name


def test_smaller_batch_leaves_nothing_of_a_larger_one() -> None:
    """TokenSpeed #955's kind: rows past the batch are inert, whatever was there before."""
    double = host()
    builder = double.builder(choose(stock()))
    run(builder, double, concurrency((3000, 2000, 1000)))
    small = Batch("graph", (4,), (5,), 16, 4, (False,), (0,))
    for step in run(builder, double, small)[1:]:
        request = step.req_metadata
        assert request.seq_lens[1:].tolist() == [0] * 15
        assert request.block_table[1:].unique().tolist() == [0]
        assert request.cp_metadata.local_seq_lens[1:].tolist() == [0] * 15
