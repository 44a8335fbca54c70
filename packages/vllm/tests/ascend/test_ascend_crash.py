"""The crash, reproduced: upstream's builder fails in the double, ours passes the same."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ascend_double import HostDouble
from ascend_double.batches import BLOCK, Batch, common_metadata
from ascend_double.scenario import addresses, concurrency, host, run, stock

from dsacp.graph import GraphGuard
from dsacp.vllm.ascend.plugin import choose


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


def test_upstreams_kernel_writes_past_its_buffers() -> None:
    """EZ9999 of #16168: 16 requests lose guard words in upstream's own kernel, 6 do not."""
    script = Path(__file__).with_name("store_past_end.py")
    lost = []
    for rows in ("16", "6"):
        command = [sys.executable, script, rows, "6"]
        answer = subprocess.run(command, check=True, capture_output=True, text=True)
        lost.append(int(answer.stdout))
    assert lost == [20, 0], "ten starts and ten lengths"


def test_our_buffers_keep_their_guard_words() -> None:
    double = host()
    ours = double.builder(choose(stock()))
    run(ours, double, concurrency())
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
    """Upstream U21: ``S - q`` of a padded row is -1 upstream; ours clamps at 0."""
    double = HostDouble(3, 2, 0, max_num_seqs=64, max_num_batched_tokens=64)
    upstream = run(double.builder(stock()), double, concurrency())
    ours = run(double.builder(choose(stock())), double, concurrency())
    for index in (1, 2):
        assert upstream[index].req_metadata.start_pos[3:].tolist() == [-1] * 13
        assert ours[index].req_metadata.start_pos[3:].tolist() == [0] * 13
        assert (
            ours[index].req_metadata.start_pos[:3] == upstream[index].req_metadata.start_pos[:3]
        ).all()
