"""Where ours differs from upstream on purpose, and what holds only for ours."""

import random

import pytest
import torch
from ascend_double import HostDouble
from ascend_double.batches import BLOCK, STALE, Batch, common_metadata
from ascend_double.scenario import concurrency, host, run, stock

from dsacp.vllm.ascend.plugin import choose


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
    """Upstream U30: upstream captures 4 requests and replays 16; ours captures the 16."""
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


def test_overflow_is_judged_by_positions() -> None:
    """Upstream resets a request whose length, rejected tokens included, passes the limit.

    A request that is over the limit gets length 1 at position 0, and upstream adds 1 a step to it.
    """
    double = HostDouble(3, 1, 0, max_num_seqs=64, max_num_batched_tokens=64)
    batch = Batch("graph", (4, 4), (4091, 4092), 16, 4, (False,) * 2, (3, 0))
    upstream = run(double.builder(stock()), double, batch)[2].req_metadata
    ours = run(double.builder(choose(stock())), double, batch)[2].req_metadata
    # the first request goes on at position 4093; the second passed the limit a step ago
    assert upstream.seq_lens[:2].tolist() == [1, 2]
    assert ours.seq_lens[:2].tolist() == [4094, 1]
    assert upstream.input_positions[:2].tolist() == ours.input_positions[:2].tolist() == [4093, 0]
    assert ours.slot_mapping[1].tolist() == [-1, BLOCK - 1]


def test_a_reset_request_stays_at_position_0() -> None:
    """Past the limit: position 0, length 1, slot -1, in every later step; upstream counts on.

    The length follows from the position that the host has reset, the slot is the host's own: no
    real slot at position 0 is written. The request beside it is not touched.
    """
    double = HostDouble(5, 1, 0, max_num_seqs=64, max_num_batched_tokens=64)
    batch = Batch("graph", (6, 6), (4089, 700), 12, 2, (False,) * 2, (0, 0))
    upstream = run(double.builder(stock()), double, batch)
    ours = run(double.builder(choose(stock())), double, batch)
    # the last accepted token of the first request stands at 4094
    lengths, slots, reset = [], [], [-1, BLOCK - 1]
    for left, right in zip(upstream[1:], ours[1:], strict=True):
        theirs, own = left.req_metadata, right.req_metadata
        assert own.input_positions[:2].tolist() == theirs.input_positions[:2].tolist()
        assert torch.equal(own.slot_mapping, theirs.slot_mapping)
        lengths.append((int(theirs.seq_lens[0]), int(own.seq_lens[0])))
        slots.append(own.slot_mapping[0].tolist() == reset)
        assert own.start_pos[0] == own.seq_lens[0] - 1
    assert lengths == [(4096, 4096), (1, 1), (2, 1), (3, 1)]
    assert slots == [False, True, True, True]
    assert [int(step.req_metadata.seq_lens[1]) for step in ours[1:]] == [707, 708, 709, 710]


def test_starts_past_the_rows_repeat_the_last() -> None:
    """Upstream's group buffers hold 0 there, so a kernel that reads on would see a new request."""
    double = HostDouble(3, 1, 0, max_num_seqs=64, max_num_batched_tokens=64)
    builder = double.builder(choose(stock()))
    batch = Batch("verify", (4, 4), (9, 70), 8, 2, (False,) * 2, (0, 0))
    run(builder, double, batch)
    bank = builder.dsacp_banks.made[2]
    assert bank.size.rows == 64
    assert bank.words("local_query_start_loc")[2:].unique().tolist() == [2]
    assert bank.words("local_seq_lens")[2:].unique().tolist() == [0]


def test_a_step_of_no_requests_is_empty() -> None:
    """Upstream takes the maximum of no lengths, which torch refuses."""
    double = host()
    batch = Batch("verify", (4,), (9,), 4, 1, (False,), (0,))
    common = common_metadata(batch, double, random.Random(0))
    common.num_reqs = common.num_actual_tokens = common.num_input_tokens = 0
    for name in ("query_start_loc", "query_start_loc_cpu"):
        setattr(common, name, getattr(common, name)[:1])
    for name in ("seq_lens", "seq_lens_cpu", "_seq_lens_cpu", "block_table_tensor", "slot_mapping"):
        setattr(common, name, getattr(common, name)[:0])
    common.is_prefilling = common.is_prefilling[:0]
    given = {"common_ratio_to_sas_metadata": {}, "block_size": BLOCK}
    with pytest.raises(RuntimeError, match="max"):
        double.builder(stock()).build(0, common, None, **given)
    request = double.builder(choose(stock())).build(0, common, None, **given).req_metadata
    assert request.query_start_loc.tolist() == [0]
    assert request.seq_lens.numel() == request.slot_mapping.shape[0] == 0
