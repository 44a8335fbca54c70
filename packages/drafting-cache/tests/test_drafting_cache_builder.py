"""The builder: one launch equals the host's rhythm, addresses stay, padding is inert."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from dsacp.core import CapacityError, LayoutError, StaleAddressError, check_disjoint
from dsacp.drafting_cache import BoundInputs, DraftBatch, GroupMetadata, GroupSpec, StepMetadata

POISON = 0x7FFFFFFF
Make = Callable[..., Any]


def tensors(step: StepMetadata) -> dict[str, torch.Tensor]:
    found = {}
    for name, group in step.groups.items():
        for field in fields(GroupMetadata):
            value = getattr(group, field.name)
            if field.name == "compressor":
                for part in fields(value) if value is not None else ():
                    found[f"{name}.compressor.{part.name}"] = getattr(value, part.name)
            elif value is not None:
                found[f"{name}.{field.name}"] = value
    for layer in ("layers.0.attn", "layers.1.attn"):
        found[f"{layer}.cos"] = step.rope.cos[layer]
        found[f"{layer}.sin"] = step.rope.sin[layer]
        found[f"{layer}.local_cos"] = step.local_rope.cos[layer]
    return found


def snapshot(step: StepMetadata) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in tensors(step).items()}


def assert_equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert torch.equal(value, right[name]), name


@pytest.mark.parametrize("padding", ["dummy", "repeat"])
@pytest.mark.parametrize("layout", ["tokens", "requests"])
@pytest.mark.parametrize("bucket", [None, 16])
def test_one_launch_equals_the_hosts_rhythm(
    make_host: Make, draft_specs: Make, padding: str, layout: str, bucket: int | None
) -> None:
    options = {"groups": draft_specs(3), "padding": padding, "layout": layout}
    fused, stepwise = make_host(**options), make_host(**options)
    rejected = [0, 3, 1]
    batch = fused.batch([4, 4, 4], [100, 57, 9], rejected, bucket)
    steps = fused.builder.build_all(batch)
    assert_equal(snapshot(steps[0]), snapshot(stepwise.builder.build(batch)))
    for index in (1, 2):
        lengths = [s - r + index for s, r in zip([100, 57, 9], rejected, strict=True)]
        later = stepwise.batch([1, 1, 1], lengths, bucket=bucket)
        one = stepwise.builder.build_for_drafting(later, index)
        assert_equal(snapshot(steps[index]), snapshot(one))


def test_addresses_stay_and_values_change_over_builds(make_host: Make) -> None:
    """vllm-ascend #12599: cloned starts and lengths were freed while the graph kept them."""
    host = make_host()
    first = host.builder.build_all(host.batch([4, 4, 4], [100, 57, 9], bucket=16))
    addresses = [{n: t.data_ptr() for n, t in tensors(step).items()} for step in first]
    before = [snapshot(step) for step in first]
    junk = [torch.empty(1000 + size) for size in range(100)]
    second = host.builder.build_all(host.batch([4, 4], [33, 200], [1, 2], bucket=16))
    assert [{n: t.data_ptr() for n, t in tensors(step).items()} for step in second] == addresses
    assert all(
        not torch.equal(old["draft0.seq_lens"], step.groups["draft0"].seq_lens)
        for old, step in zip(before, second, strict=True)
    )
    del junk


def test_no_two_owners_share_a_byte(make_host: Make, target_specs: Make) -> None:
    """vllm-ascend #9623 and #16980: one cache served all steps, one table all groups."""
    drafter = make_host()
    target = make_host(groups=target_specs(), num_steps=1)
    check_disjoint([*drafter.builder.regions(), *target.builder.regions()])


def test_more_concurrent_tokens_than_max_num_seqs(make_host: Make) -> None:
    """vllm-ascend #16168: 16 one-token rows of a bucket met buffers of max_num_seqs = 6."""
    host = make_host()
    steps = host.builder.build_all(host.batch([4, 4, 4], [100, 57, 9], bucket=16))
    group = [step.groups["draft0"] for step in steps]
    assert group[0].query_start_loc.tolist() == [0, 4, 8, 12, 16]
    assert group[0].seq_lens.tolist() == [100, 57, 9, 0]
    assert group[1].query_start_loc.tolist() == list(range(17))
    assert group[1].seq_lens.tolist() == [101, 58, 10] + [0] * 13
    assert group[2].seq_lens.tolist() == [102, 59, 11] + [0] * 13
    assert group[1].slot_mapping[3:].tolist() == [-1] * 13
    assert group[1].positions[:3].tolist() == [100, 57, 9]


@pytest.mark.parametrize("padding", ["dummy", "repeat"])
def test_a_smaller_batch_leaves_nothing_of_a_larger_one(make_host: Make, padding: str) -> None:
    """SGLang #10892, TokenSpeed #955: stale tails past the batch wrote another request's KV."""
    host, fresh = make_host(padding=padding), make_host(padding=padding)
    host.builder.build_all(host.batch([4] * 4, [100, 57, 9, 300], bucket=16))
    small = host.batch([4], [20], bucket=8)
    step = host.builder.build_all(small)[0]
    fresh.builder.build_all(small)
    for left, right in zip(host.builder.storages(), fresh.builder.storages(), strict=True):
        assert torch.equal(left.view(torch.int32), right.view(torch.int32))
    starts = step.groups["draft0"].query_start_loc
    whole = starts.as_strided((host.builder.config.capacity.max_reqs + 1,), (1,))
    assert whole[2:].eq(whole[2]).all()


def test_poison_in_every_field_is_overwritten(make_host: Make) -> None:
    """vLLM #48261: a replay read dummy values of the capture."""
    host = make_host()
    batch = host.batch([4, 4, 4], [100, 57, 9], bucket=16)
    steps = host.builder.build_all(batch)
    expected = [snapshot(step) for step in steps]
    for step in steps:
        for name, tensor in tensors(step).items():
            if not name.endswith("block_table"):
                tensor.view(torch.int32).fill_(POISON)
    host.builder.stage(batch)
    for want, step in zip(expected, host.builder.refresh(16), strict=True):
        assert_equal(want, snapshot(step))


def test_host_may_change_its_buffers_after_staging(make_host: Make) -> None:
    """vllm-ascend #10763: async inputs were reused before the device had read them."""
    host = make_host()
    batch = host.batch([4, 4, 4], [100, 57, 9], [1, 0, 2], bucket=16)
    expected = [snapshot(step) for step in host.builder.build_all(batch)]
    host.builder.stage(batch)
    for tensor in (batch.query_start_loc, batch.seq_lens, batch.num_rejected):
        tensor.fill_(POISON)
    for want, step in zip(expected, host.builder.refresh(16), strict=True):
        assert_equal(want, snapshot(step))


def test_bound_inputs_need_no_staging(make_host: Make) -> None:
    staged, bound = make_host(), make_host()
    reqs = bound.builder.config.capacity.max_reqs
    inputs = BoundInputs(*(torch.zeros(n, dtype=torch.int32) for n in (reqs + 1, reqs, reqs, 1)))
    bound.builder.release()
    bound.builder.restore()
    bound.builder.bind(bound.tables, inputs)
    batch = staged.batch([4, 4], [40, 17], [0, 2], bucket=8)
    inputs.query_start_loc[:3].copy_(batch.query_start_loc)
    inputs.seq_lens[:2].copy_(batch.seq_lens)
    inputs.num_rejected[:2].copy_(batch.num_rejected)
    inputs.num_reqs.fill_(2)
    left = [snapshot(step) for step in staged.builder.build_all(batch)]
    announced = DraftBatch(batch.num_reqs, batch.num_tokens, bucket=batch.bucket)
    right = [snapshot(step) for step in bound.builder.build_all(announced)]
    for a, b in zip(left, right, strict=True):
        assert_equal(a, b)


@pytest.mark.parametrize("draft_tokens", range(1, 8))
def test_dynamic_number_of_steps(make_host: Make, draft_tokens: int) -> None:
    size = (draft_tokens + 1) * 4
    host = make_host(num_draft_tokens=draft_tokens, capture_sizes=(size,))
    batch = host.batch([draft_tokens + 1] * 3, [100, 57, 30], bucket=size)
    full = [snapshot(step) for step in host.builder.build_all(batch)]
    for count in range(1, draft_tokens + 1):
        steps = host.builder.build_all(batch, num_steps=count)
        assert len(steps) == count
        for want, step in zip(full, steps, strict=False):
            assert_equal(want, snapshot(step))
    with pytest.raises(CapacityError, match=f"1..{draft_tokens} steps"):
        host.builder.build_all(batch, num_steps=draft_tokens + 1)


def test_groups_have_their_own_table_slots_and_words(make_host: Make, draft_specs: Make) -> None:
    """vllm-ascend #16980: all draft layers used group 0's block table, acceptance 0 %."""
    host = make_host(groups=draft_specs(2))
    host.tables["draft0"].copy_(
        torch.arange(host.tables["draft0"].numel()).view_as(host.tables["draft0"])
    )
    step = host.builder.build(host.batch([4, 4], [30, 9], bucket=8))
    left, right = step.groups["draft0"], step.groups["draft1"]
    assert not torch.equal(left.slot_mapping, right.slot_mapping)
    assert torch.equal(left.sas_metadata, right.sas_metadata)
    assert torch.equal(left.local_seq_lens, right.local_seq_lens)
    assert left.local_seq_lens.data_ptr() != right.local_seq_lens.data_ptr()
    position = 29
    row, column = 0, position // 16
    want = host.tables["draft1"][row, column] * 16 + position % 16
    assert right.slot_mapping[3] == want


def test_target_groups_get_plans_and_compressed_rows(make_host: Make, target_specs: Make) -> None:
    host = make_host(groups=target_specs(), num_steps=1, tp=(1, 0))
    step = host.builder.build(host.batch([5, 1, 9], [130, 16, 9]))
    c4, c128 = step.groups["c4"].compressor, step.groups["c128"].compressor
    assert c4.positions[c4.requests >= 0].tolist() == [124, 12, 0, 4]
    assert c4.requests[c4.requests >= 0].tolist() == [0, 1, 2, 2]
    assert c128.positions[c128.requests >= 0].tolist() == [0]
    assert step.groups["c4"].slot_mapping is None
    assert step.groups["indexer"].qli_metadata[0] == 1
    table = host.tables["c4"]
    assert c4.slot_mapping[0] == table[0, 31 // 8] * 8 + 31 % 8


def test_a_compressed_group_has_no_raw_slots(make_host: Make) -> None:
    """A compressed group that asked for no rows got its slots as if it were a plain one."""
    groups = [GroupSpec("plain", 8), GroupSpec("read_only", 8, compress_ratio=4)]
    step = make_host(groups=groups).builder.build(make_host().batch([4, 4], [40, 90]))
    assert step.groups["plain"].slot_mapping is not None
    assert step.groups["read_only"].slot_mapping is None


def test_idle_rank(make_host: Make) -> None:
    """vllm-ascend #15347: an idle data-parallel rank must join the group's graph."""
    host = make_host()
    for batch in (host.batch([4], [0], bucket=8), host.batch([], [], bucket=8)):
        for step in host.builder.build_all(batch):
            group = step.groups["draft0"]
            assert group.local_seq_lens.eq(0).all()
            assert group.slot_mapping.eq(-1).all()
            assert group.positions.eq(0).all()


def test_mixed_batch_gets_one_dummy_request(make_host: Make) -> None:
    """vllm-ascend #6357: FIA needs query_start_loc[-1] == T."""
    host = make_host()
    batch = replace(host.batch([5, 1, 4], [5, 40, 20]), num_tokens_padded=16)
    group = host.builder.build(batch).groups["draft0"]
    assert group.query_start_loc.tolist() == [0, 5, 6, 10, 16]
    assert group.local_query_start_loc.tolist() == [0, 1, 2, 4, 4]
    assert group.local_seq_lens.tolist() == [5, 40, 18, 0]
    assert group.start_pos.tolist() == [0, 39, 16, 0]


def test_rope_rows_follow_each_steps_positions(make_host: Make) -> None:
    """vllm-ascend #9605: a global RoPE cache let later steps overwrite step 0."""
    host = make_host(tp=(3, 2), capture_sizes=(12,))
    steps = host.builder.build_all(host.batch([4, 4], [104, 60], bucket=12))
    cos, _ = host.builder.config.rope.tables(torch.device("cpu"))[
        host.builder.config.rope.config_of("layers.1.attn")
    ]
    for step in steps:
        positions = step.groups["draft0"].positions.long()
        assert torch.equal(step.rope.cos["layers.1.attn"].view(len(positions), -1), cos[positions])
        local = step.local_rope.cos["layers.1.attn"]
        assert local.shape[0] == step.shard.per_rank


def test_too_large_a_batch_is_refused_with_both_numbers(make_host: Make) -> None:
    """SGLang #28767: an eager batch larger than the static buffers was written into them."""
    host = make_host()
    before = [storage.clone() for storage in host.builder.storages()]
    with pytest.raises(CapacityError, match="18 requests and 72 tokens.* hold 17 and 64"):
        host.builder.build(host.batch([4] * 18, [9] * 18))
    with pytest.raises(CapacityError, match="captured for 2 requests and 8 tokens.* has 3 and 12"):
        host.builder.build(host.batch([4] * 3, [9] * 3, bucket=8))
    with pytest.raises(CapacityError, match="bucket of"):
        host.builder.build(host.batch([4] * 3, [9] * 3, bucket=12))
    for old, new in zip(before, host.builder.storages(), strict=True):
        assert torch.equal(old.view(torch.int32), new.view(torch.int32))


def test_a_group_without_its_table_is_refused(make_host: Make, draft_specs: Make) -> None:
    """TokenSpeed #207: a draft replay without per-group tables read sentinel pages."""
    host = make_host(groups=draft_specs(2))
    host.builder.release()
    host.builder.restore()
    with pytest.raises(LayoutError, match="found none for .*draft1"):
        host.builder.bind({"draft0": host.tables["draft0"]})
    with pytest.raises(LayoutError, match="call bind"):
        host.builder.build(host.batch([4], [9]))


def test_a_moved_block_table_is_refused(make_host: Make) -> None:
    """vllm-ascend #17178: per-round clones cannot be read by a graph."""
    host = make_host()
    with pytest.raises(StaleAddressError, match="draft0"):
        host.builder.bind({"draft0": host.tables["draft0"].clone()})


def test_released_buffers_are_a_new_generation(make_host: Make) -> None:
    """vLLM #55013: sleep mode freed what a captured graph still pointed at."""
    host = make_host()
    old = host.builder.build(host.batch([4], [9], bucket=8))
    host.builder.release()
    with pytest.raises(StaleAddressError, match="released"):
        host.builder.build(host.batch([4], [9], bucket=8))
    host.builder.restore()
    host.builder.bind(host.tables)
    new = host.builder.build(host.batch([4], [9], bucket=8))
    assert (old.generation, new.generation) == (0, 1)


def test_a_rope_table_shorter_than_the_context_is_refused(make_host: Make) -> None:
    """vLLM #57941: a drafter's RoPE table was shorter than the target's context."""
    with pytest.raises(CapacityError, match="max_model_len=513 rows, found 512"):
        make_host(max_model_len=513)


@pytest.mark.parametrize(
    ("overflow", "want"), [("reset", (0, 1, -1)), ("saturate", (511, 512, None))]
)
def test_overflow_of_max_model_len(
    make_host: Make, overflow: str, want: tuple[int, int, int | None]
) -> None:
    host = make_host(overflow=overflow)
    steps = host.builder.build_all(host.batch([4, 4], [511, 30], bucket=8))
    group = steps[2].groups["draft0"]
    assert (int(group.positions[0]), int(group.seq_lens[0])) == want[:2]
    slot = int(host.tables["draft0"][0, 511 // 4]) * 4 + 511 % 4 if want[2] is None else want[2]
    assert int(group.slot_mapping[0]) == slot
    assert group.seq_lens[1] == 32


@pytest.mark.parametrize("overflow", ["reset", "saturate"])
@pytest.mark.parametrize("host_resets", [False, True])
def test_the_hosts_rhythm_overflows_like_one_launch(
    make_host: Make, overflow: str, host_resets: bool
) -> None:
    """A host that had reset a row to length 1 got a real slot at position 0: KV overwritten.

    Its row has 512 tokens, the limit, in step 1 and then 1 after the reset.
    """
    fused, stepwise = make_host(overflow=overflow), make_host(overflow=overflow)
    steps = fused.builder.build_all(fused.batch([4, 4], [511, 30], bucket=8))
    for index in (1, 2):
        beyond = 1 if host_resets and overflow == "reset" else 513
        lengths = [512 if index == 1 else beyond, 30 + index]
        later = stepwise.batch([1, 1], lengths, bucket=8)
        one = stepwise.builder.build_for_drafting(later, index)
        assert_equal(snapshot(steps[index]), snapshot(one))


def test_a_block_of_mutually_visible_queries_is_step_0(make_host: Make) -> None:
    """DSpark's B * (K+1) tokens, passed on as the host's draft index 1, met banks of B rows."""
    host = make_host(causal=False, layout="requests", tp=(1, 0))
    block = host.builder.build(host.batch([4] * 6, [40, 9, 77, 30, 21, 12])).groups["draft0"]
    assert block.positions[:8].tolist() == [36, 37, 38, 39, 5, 6, 7, 8]
    assert block.local_seq_lens.tolist() == [40, 9, 77, 30, 21, 12]
    with pytest.raises(LayoutError, match="1 step of a non-causal block, found 3"):
        make_host(causal=False, num_steps=3)


def test_more_rows_than_a_planner_takes_are_refused(make_host: Make) -> None:
    """The device's planner cannot raise: it would cut a larger plan without a word."""
    with pytest.raises(CapacityError, match="at most 16384 rows in a planned step, found 16385"):
        make_host(max_num_seqs=16384)
