"""Torch versions of the builders' Triton kernels against plain loops. Needs no vLLM."""

import pytest
import torch

from dsacp.vllm_cpu_kit.builder_kernels import (
    compressed_slot_mapping,
    prefill_gather_lens,
    swa_indices_and_lens,
    token_to_req_indices,
    uniform_decode,
)

BLOCK = 8
STARTS = torch.tensor([0, 4, 5, 8], dtype=torch.int32)
LENGTHS = torch.tensor([30, 1, 9], dtype=torch.int32)
TABLE = torch.randperm(18).int().view(3, 6)


def test_window_slots_follow_each_tokens_own_request() -> None:
    out = torch.full((8,), 0x7FFFFFFF, dtype=torch.int32)
    req = token_to_req_indices(STARTS, out, 7, 8)
    assert req.tolist() == [0, 0, 0, 0, 1, 2, 2, 0]
    valid = torch.tensor([True] * 7 + [False])
    indices = torch.full((8, 1, 12), 0x7FFFFFFF, dtype=torch.int32)
    lens = torch.full((8,), 0x7FFFFFFF, dtype=torch.int32)
    unused = lens
    swa_indices_and_lens(
        indices, lens, 12, 12, unused, unused, STARTS, LENGTHS, req, valid, TABLE, BLOCK,
        torch.tensor([0, 0, 3], dtype=torch.int32), num_tokens=8, token_offset=0,
    )  # fmt: skip
    positions = [26, 27, 28, 29, 0, 6, 7]
    for token, position in enumerate(positions):
        row = int(req[token])
        first = max(position - 11, 3 if row == 2 else 0)
        want = [int(TABLE[row, p // BLOCK]) * BLOCK + p % BLOCK for p in range(first, position + 1)]
        assert indices[token, 0, : int(lens[token])].tolist() == want
    assert int(lens[7]) == 0
    assert bool((indices[7] == -1).all())


def test_a_compressed_slot_belongs_to_the_token_that_closes_the_group() -> None:
    slots = torch.arange(8)
    slots[7] = -1
    out = compressed_slot_mapping(8, slots, STARTS, LENGTHS, TABLE, BLOCK, 4)
    # positions: 26..29, 0, 6..8
    first, last = (int(TABLE[row, 0]) * BLOCK + state for row, state in ((0, 6), (2, 1)))
    assert out.tolist() == [-1, first, -1, -1, -1, -1, last, -1]


def test_decode_rows_and_gather_lengths() -> None:
    lens = torch.full((2,), 0x7FFFFFFF, dtype=torch.int32)
    prefill_gather_lens(lens, LENGTHS, STARTS, torch.zeros(3, dtype=torch.int32), 2, 1, 5)
    assert lens.tolist() == [1, 7]
    token_lens, ones = torch.zeros(4, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    rows = torch.zeros(4, 6, dtype=torch.int32)
    uniform_decode(LENGTHS[:2], token_lens, TABLE[:2], rows, ones, 4, 2)
    assert token_lens.tolist() == [29, 30, 0, 1]
    assert torch.equal(rows, TABLE[[0, 0, 1, 1]])
    assert ones.tolist() == [1] * 4


def test_images_and_context_parallel_slots_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="text only"):
        swa_indices_and_lens(*[None] * 13, num_tokens=0, token_offset=0, has_image=True)
    with pytest.raises(NotImplementedError, match="context parallelism"):
        compressed_slot_mapping(1, *[None] * 4, 8, 4, dcp_world_size=2)
