"""Rank-local window rows on the host's batches. Needs no vLLM: loops stand in for its kernels."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch

from dsacp.core import DraftCapacity, DsacpError, StaleAddressError
from dsacp.graph import GraphGuard, capture
from dsacp.vllm.steps import GROUP, StepBuffers, make_cache, make_capacity, whole_table
from dsacp.vllm.window import WindowKernels

BLOCK, WINDOW, MAX_LEN, SEQS, K = 16, 24, 256, 5, 3
REPLAY = torch.zeros(SEQS + 1, dtype=torch.int32)


def token_to_req(starts, out, num_mapped, num_tokens) -> None:
    token = torch.arange(num_tokens, dtype=starts.dtype)
    found = torch.searchsorted(starts[1:].contiguous(), token, right=True)
    out[:num_tokens] = found.clamp(max=starts.numel() - 2)


def indices_and_lens(
    indices, lens, window, width, _left, _right, starts, lengths, req, valid, table, block, replay,
    *, num_tokens, token_offset,
) -> None:  # fmt: skip
    first = lengths[req] - starts[req + 1] + torch.arange(num_tokens) - window + 1
    count = torch.where(valid, (first + window).clamp(max=window), 0)
    where = first.clamp(min=0)[:, None] + torch.arange(width)
    column = (where // block).clamp(max=table.shape[1] - 1)
    slots = table[req[:, None].long(), column] * block + where % block
    indices[:, 0] = torch.where(torch.arange(width) < count[:, None], slots, -1)
    lens.copy_(count)


KERNELS = WindowKernels(token_to_req, indices_and_lens)


@dataclass
class Host:
    """The fields of vLLM's CommonAttentionMetadata that a build reads."""

    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    num_reqs: int
    num_actual_tokens: int
    block_table_tensor: torch.Tensor
    slot_mapping: torch.Tensor


TABLE = torch.randperm(SEQS * 16, generator=torch.Generator().manual_seed(1)).int().view(SEQS, 16)


def make_host(queries: list[int], lengths: list[int]) -> Host:
    starts = torch.tensor([0, *torch.tensor(queries).cumsum(0).tolist()], dtype=torch.int32)
    slots = [
        int(TABLE[row, position // BLOCK]) * BLOCK + position % BLOCK
        for row, (count, length) in enumerate(zip(queries, lengths, strict=True))
        for position in range(length - count, length)
    ]
    return Host(
        starts,
        torch.tensor(lengths, dtype=torch.int32),
        len(queries),
        sum(queries),
        TABLE[: len(queries)],
        torch.tensor(slots, dtype=torch.int64),
    )


def make_buffers(tp: int, rank: int) -> StepBuffers:
    capacity = DraftCapacity.from_config(SEQS, 96, K, tp, layout="requests")
    cache = make_cache(capacity, BLOCK, rank, "cpu", MAX_LEN, v2=False)
    return StepBuffers(cache, BLOCK, WINDOW, KERNELS)


def expected_rows(host: Host) -> list[list[int]]:
    rows = []
    for row in range(host.num_reqs):
        count = int(host.query_start_loc[row + 1] - host.query_start_loc[row])
        length = int(host.seq_lens[row])
        for position in range(length - count, length):
            window = range(max(position - WINDOW + 1, 0), position + 1)
            rows.append([int(TABLE[row, p // BLOCK]) * BLOCK + p % BLOCK for p in window])
    return rows


BATCHES = [
    ([4, 4, 4], [40, 7, 130]),
    ([17, 1, 30], [17, 90, 64]),
    ([1], [1]),
    ([4, 1, 3, 2, 5], [200, 33, 3, 60, 25]),
]


@pytest.mark.parametrize("tp", [1, 2, 3])
@pytest.mark.parametrize(("queries", "lengths"), BATCHES)
def test_ranks_together_read_what_one_rank_reads(tp, queries, lengths) -> None:
    host = make_host(queries, lengths)
    rows: list[list[int]] = []
    for rank in range(tp):
        buffers = make_buffers(tp, rank)
        step, slots = buffers.fill(host, 0)
        local = buffers.local(step, 0, host.num_reqs, REPLAY)
        assert torch.equal(slots[: host.num_actual_tokens], host.slot_mapping)
        assert bool((slots[host.num_actual_tokens :] == -1).all())
        for index in range(local.shard.real):
            count = int(local.lens[index])
            assert bool((local.indices[index, 0, count:] == -1).all())
            rows.append(local.indices[index, 0, :count].tolist())
        assert not bool(local.valid[local.shard.real :].any())
        assert bool((local.indices[local.shard.real :] == -1).all())
    assert rows == expected_rows(host)


def test_a_token_that_the_host_masks_stays_masked() -> None:
    """A draft past max_model_len has position 0 and length 1: its position names a real slot."""
    host = make_host([1, 1, 1], [50, 1, 9])
    host.slot_mapping[1] = -1
    buffers = make_buffers(2, 0)
    step, slots = buffers.fill(host, 1)
    local = buffers.local(step, 1, host.num_reqs, REPLAY)
    assert slots.tolist()[:3] == host.slot_mapping.tolist()
    assert local.valid.tolist() == [True, False]
    assert int(local.lens[1]) == 0


def test_addresses_stay_over_batches_and_steps_do_not_share_bytes() -> None:
    buffers = make_buffers(2, 1)
    guard = GraphGuard(buffers.cache.regions(), buffers.cache.storages())
    seen: dict[str, int] = {}
    metadata = {}
    for queries, lengths in [BATCHES[0], BATCHES[3], BATCHES[0]]:
        for bank in range(K):
            host = make_host(queries if bank == 0 else [1] * len(queries), lengths)
            step, slots = buffers.fill(host, bank)
            local = buffers.local(step, bank, host.num_reqs, REPLAY)
            now = {"slots": slots, "local": local}
            for name in ("token_to_req", "valid", "indices", "lens", "seq_lens"):
                address = getattr(local, name).data_ptr()
                assert seen.setdefault(f"{bank}/{name}", address) == address
            metadata[f"step{bank}"] = now
    guard.check_words()
    guard.check_isolated(metadata)


def test_an_in_place_update_can_be_captured_and_replayed() -> None:
    """V2 records the update of a draft decode batch; a replay sees the host's new lengths."""
    host = make_host([1, 1, 1], [30, 90, 5])
    buffers = make_buffers(2, 1)

    def update() -> torch.Tensor:
        step, _ = buffers.fill(host, 0)
        return buffers.local(step, 0, host.num_reqs, REPLAY).indices

    update()
    graph = capture(update, device=torch.device("cpu"))
    later = make_host([1, 1, 1], [31, 91, 6])
    host.seq_lens.copy_(later.seq_lens)
    host.slot_mapping.copy_(later.slot_mapping)
    graph.replay()
    fresh = make_buffers(2, 1)
    step, _ = fresh.fill(later, 0)
    assert torch.equal(graph.output, fresh.local(step, 0, host.num_reqs, REPLAY).indices)


def test_a_block_table_that_moves_is_refused() -> None:
    buffers = make_buffers(1, 0)
    host = make_host([1, 1], [9, 20])
    buffers.fill(host, 0)
    with pytest.raises(StaleAddressError, match="block table of 'swa'"):
        buffers.fill(replace(host, block_table_tensor=TABLE.clone()[:2]), 0)


def test_a_slice_of_the_table_is_widened_to_all_rows() -> None:
    assert torch.equal(whole_table(TABLE[:2], SEQS), TABLE)
    assert whole_table(TABLE[:2], SEQS + 4).shape == TABLE.shape
    assert whole_table(TABLE[1:2, :7], 2).tolist() == TABLE[1:3, :7].tolist()


def test_the_group_is_named_once() -> None:
    step, _ = make_buffers(1, 0).fill(make_host([1], [3]), 0)
    assert list(step.groups) == [GROUP]


def engine_config(seqs: int, captures: list[int] | None) -> SimpleNamespace:
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_seqs=seqs, max_num_batched_tokens=8),
        compilation_config=SimpleNamespace(cudagraph_capture_sizes=captures),
        speculative_config=SimpleNamespace(num_speculative_tokens=K),
    )


def serve(seqs: int, tp: int, captures: list[int] | None) -> Iterable[str | None]:
    """Fill every draft step with every batch; yields what was refused, None where nothing was."""
    table = torch.ones(seqs, 16, dtype=torch.int32)
    capacity = make_capacity(engine_config(seqs, captures), tp)
    buffers = StepBuffers(
        make_cache(capacity, BLOCK, tp - 1, "cpu", MAX_LEN, v2=False), BLOCK, WINDOW, KERNELS
    )
    for count in range(1, seqs + 1):
        lengths = torch.full((count,), 9, dtype=torch.int32)
        starts = torch.arange(count + 1, dtype=torch.int32)
        slots = torch.arange(count)
        host = Host(starts, lengths, count, count, table[:count], slots)
        for bank in range(K):
            try:
                step, _ = buffers.fill(host, bank)
                buffers.local(step, bank, count, torch.zeros(count, dtype=torch.int32))
            except DsacpError as error:
                yield f"max_num_seqs {seqs} tp {tp} batch {count} step {bank}: {error}"
            else:
                yield None


def refusals(seqs: Iterable[int], ranks: Iterable[int]) -> list[str]:
    tried = [
        refused
        for count in seqs
        for tp in ranks
        for captures in (None, [1, max(tp - 1, 1)], [tp, 2 * tp])
        for refused in serve(count, tp, captures)
    ]
    refused = [text for text in tried if text is not None]
    print(f"{len(tried)} steps of batches, {len(refused)} refused")
    return refused


def test_no_batch_of_the_engine_is_refused() -> None:
    """With tp 4 a draft step of one request ended the engine: its four rows met inputs of two."""
    assert refusals((1, 6), (3, 4, 8)) == []


@pytest.mark.slow
def test_no_batch_of_any_engine_is_refused() -> None:
    assert refusals(range(1, 18), range(1, 17)) == []
