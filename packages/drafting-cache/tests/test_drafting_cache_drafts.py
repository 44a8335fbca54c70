"""Who takes part in steps >= 1, and counts that are not trusted, through every entry point."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsacp.core import LayoutError, StaleAddressError
from dsacp.drafting_cache import BoundInputs, DraftBatch, GroupMetadata, StepMetadata
from dsacp.drafting_cache.host import PinnedRing

Make = Callable[..., Any]


def int32(values: Sequence[int]) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.int32)


def group(step: StepMetadata, name: str = "draft0") -> GroupMetadata:
    return step.groups[name]


def live_rows(step: StepMetadata) -> list[int]:
    """Return rows that have a slot, and check that every other one is padding in all fields."""
    fields, rows = group(step), []
    cos, sin = step.rope.cos["layers.0.attn"], step.rope.sin["layers.0.attn"]
    for row in range(step.num_reqs):
        values = [fields.seq_lens[row], fields.start_pos[row], fields.positions[row]]
        if fields.slot_mapping[row] >= 0:
            rows.append(row)
        else:
            assert [int(value) for value in values] == [0, 0, 0]
            assert int(fields.local_seq_lens[row]) == 0
            assert cos[row].eq(1).all()
            assert sin[row].eq(0).all()
    return rows


def words(host: Any) -> list[torch.Tensor]:
    return [storage.view(torch.int32).clone() for storage in host.builder.storages()]


@pytest.mark.parametrize("overflow", ["reset", "saturate"])
@pytest.mark.parametrize("padding", ["dummy", "repeat"])
def test_a_request_without_query_tokens_takes_no_part(
    make_host: Make, padding: str, overflow: str
) -> None:
    """A silent request of 30 cached tokens got a live slot in step 1: its next real token's."""
    host = make_host(tp=(1, 0), padding=padding, overflow=overflow)
    steps = host.builder.build_all(host.batch([4, 0, 4], [40, 30, 20]))
    assert group(steps[0]).seq_lens.tolist() == [40, 30, 20]
    assert [live_rows(step) for step in steps[1:]] == [[0, 2], [0, 2]]
    assert group(steps[1]).seq_lens.tolist() == [41, 0, 21]


@pytest.mark.parametrize("layout", ["tokens", "requests"])
@pytest.mark.parametrize("bucket", [None, 16])
def test_the_mask_leaves_requests_out_in_every_later_step(
    make_host: Make, draft_specs: Make, layout: str, bucket: int | None
) -> None:
    """A chunk of an unfinished prompt got the live slot of its next real token."""
    options = {"layout": layout, "groups": draft_specs(2), "tp": (4, 0)}
    masked, whole, later = (make_host(**options) for _ in range(3))
    batch = masked.batch([4, 4, 4], [100, 57, 9], [0, 3, 1], bucket)
    steps = masked.builder.build_all(replace(batch, drafts=int32([1, 0, 1])))
    first = whole.builder.build_all(batch)[0]
    for left, right in zip(
        vars(group(steps[0])).values(), vars(group(first)).values(), strict=True
    ):
        assert left is right is None or torch.equal(left, right)
    for index in (1, 2):
        assert live_rows(steps[index]) == [0, 2]
        advanced = later.batch([1] * 3, [100 + index, 54 + index, 8 + index], bucket=bucket)
        one = later.builder.build_for_drafting(replace(advanced, drafts=int32([1, 0, 1])), index)
        for name in ("draft0", "draft1"):
            fields = vars(group(steps[index], name)), vars(group(one, name))
            for field in (
                "seq_lens",
                "positions",
                "slot_mapping",
                "local_seq_lens",
                "sas_metadata",
            ):
                assert torch.equal(fields[0][field], fields[1][field]), field


def test_a_mask_does_not_outlive_its_batch(make_host: Make) -> None:
    host, fresh = make_host(), make_host()
    batch = host.batch([4, 4], [40, 50], bucket=8)
    host.builder.build_all(replace(batch, drafts=int32([0, 0])))
    host.builder.build_all(batch)
    fresh.builder.build_all(batch)
    assert all(map(torch.equal, words(host), words(fresh)))


def test_a_captured_refresh_reads_the_mask_that_was_staged(make_host: Make) -> None:
    host = make_host()
    batch = host.batch([4, 4], [40, 50], bucket=8)
    steps = host.builder.refresh(8)
    for mask, rows in (([1, 1], [0, 1]), ([0, 1], [1]), ([0, 0], [])):
        host.builder.stage(replace(batch, drafts=int32(mask)))
        host.builder.refresh(8)
        assert live_rows(steps[1]) == live_rows(steps[2]) == rows


@pytest.mark.parametrize("mask", [None, [0, 1]])
def test_bound_inputs_may_bring_a_mask(make_host: Make, mask: list[int] | None) -> None:
    host = make_host()
    reqs = host.builder.config.capacity.max_reqs
    inputs = BoundInputs(*(torch.zeros(n, dtype=torch.int32) for n in (reqs + 1, reqs, reqs, 1)))
    if mask is not None:
        inputs = replace(inputs, drafts=torch.ones(reqs, dtype=torch.int32))
        inputs.drafts[:2] = int32(mask)
    batch = host.batch([4, 4], [40, 17], [0, 9], bucket=8)
    inputs.query_start_loc[:3] = batch.query_start_loc
    inputs.seq_lens[:2] = batch.seq_lens
    inputs.num_rejected[:2] = batch.num_rejected
    inputs.num_reqs.fill_(2)
    host.builder.release()
    host.builder.restore()
    host.builder.bind(host.tables, inputs)
    steps = host.builder.build_all(DraftBatch(2, 8, bucket=8))
    assert live_rows(steps[1]) == ([0, 1] if mask is None else [1])
    assert int(group(steps[1]).seq_lens[1]) == 17 - 4 + 1
    other = replace(inputs, drafts=None if mask else torch.ones(reqs, dtype=torch.int32))
    with pytest.raises(StaleAddressError, match="bound drafts"):
        host.builder.bind(host.tables, other)


@pytest.mark.parametrize(
    ("rejected", "lengths"),
    [([7, -2], [37, 31]), ([2**31 - 1, -(2**31)], [37, 31]), ([4, 0], [37, 31])],
)
def test_rejected_counts_are_clamped_to_the_query(
    make_host: Make, rejected: list[int], lengths: list[int]
) -> None:
    """7 of 4 rejected, or -2, gave live slots of tokens that are not the request's next ones."""
    host = make_host()
    step = host.builder.build_all(host.batch([4, 4], [40, 30], rejected))[1]
    assert group(step).seq_lens[:2].tolist() == lengths
    assert group(step).positions[:2].tolist() == [length - 1 for length in lengths]


@pytest.mark.parametrize("changes", [{}, {"num_tokens_padded": 11}, {"num_tokens_padded": 16}])
@pytest.mark.parametrize("padding", ["dummy", "repeat"])
def test_tokens_past_the_announced_count_have_no_slot(
    make_host: Make, padding: str, changes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """10 announced tokens with starts that end at 12 gave 12 live slots."""
    # starts on a device are not read by the host, which would refuse them
    monkeypatch.setattr("dsacp.drafting_cache.values.CHEAP_REQUESTS", -1)
    host = make_host(padding=padding)
    batch = replace(host.batch([4, 4, 4], [10, 20, 30]), num_tokens=10, **changes)
    step = host.builder.build(batch)
    assert group(step).slot_mapping.ge(0).tolist() == [True] * 10 + [False] * (
        step.shard.padded - 10
    )


@pytest.mark.parametrize(
    ("drafts", "text"),
    [
        (torch.ones(2), "expected drafts as contiguous 1-D int32"),
        (torch.ones(2, dtype=torch.bool), "expected drafts as contiguous 1-D int32"),
        (torch.ones(1, dtype=torch.int32), "drafts of at least 2 entries, found 1"),
        (torch.ones(4, dtype=torch.int32)[::2], "strides"),
        (torch.ones(2, dtype=torch.int32, device="meta"), "on meta"),
    ],
)
def test_a_mask_that_cannot_be_read_touches_no_buffer(
    make_host: Make, drafts: torch.Tensor, text: str
) -> None:
    host = make_host()
    host.builder.build_all(host.batch([4] * 6, [50] * 6))
    before = words(host)
    with pytest.raises(LayoutError, match=text):
        host.builder.build_all(replace(host.batch([4, 4], [20, 30]), drafts=drafts))
    assert all(map(torch.equal, words(host), before))


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_the_launch_of_all_steps_equals_the_frameworks_rhythm(
    data: st.DataObject, make_host: Make
) -> None:
    """Silent rows, masks and rejections of any size: both ways leave the same step."""
    reqs, tp = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 8))
    options = {
        "tp": (tp, data.draw(st.integers(0, tp - 1))),
        "capture_sizes": (),
        "layout": "requests",
        "padding": data.draw(st.sampled_from(["dummy", "repeat"])),
        "overflow": data.draw(st.sampled_from(["reset", "saturate"])),
        "max_num_seqs": 8,
    }
    several = st.lists(st.integers(-2, 6), min_size=reqs, max_size=reqs)
    queries = [max(query, 0) for query in data.draw(several, "queries")]
    lens = [query + 9 for query in queries]
    rejected, drafts = data.draw(several, "rejected"), data.draw(several, "drafts")
    fused, alone = make_host(**options), make_host(**options)
    batch = fused.batch(queries, lens, rejected)
    steps = fused.builder.build_all(replace(batch, drafts=int32(drafts)))
    mask = [int(query > 0 and part != 0) for query, part in zip(queries, drafts, strict=True)]
    for index in (1, 2):
        left = [n - min(max(r, 0), q) for n, r, q in zip(lens, rejected, queries, strict=True)]
        later = alone.batch([1] * reqs, [length + index for length in left])
        one = alone.builder.build_for_drafting(replace(later, drafts=int32(mask)), index)
        for field, value in vars(group(one)).items():
            other = getattr(group(steps[index]), field)
            assert value is other is None or torch.equal(value, other), field


def test_pinned_slots_carry_the_mask(make_host: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """All inputs of a batch on the host reach the device by one copy; absent ones stay absent."""
    made = torch.empty

    def empty(*args: Any, **options: Any) -> torch.Tensor:
        options.pop("pin_memory", None)
        return made(*args, **options)

    class Event:
        def __init__(self, device: torch.device) -> None:
            del device

        def record(self) -> None:
            """Nothing runs behind the host's back here."""

        synchronize = record

    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(torch, "Event", Event)
    ring, batch = PinnedRing(3, torch.device("cpu")), make_host().batch([4, 2, 0], [9, 8, 7])
    for given_ in ({}, {"drafts": int32([1, 0, 1])}, {"num_rejected": int32([1, 2, 0])}):
        for more in ({}, {"drafts": int32([5, 6, 7, 8])}):
            wanted = replace(batch, **{**given_, **more})
            found = ring.to_device(wanted)
            for name in ("query_start_loc", "seq_lens", "num_rejected", "drafts"):
                left, right = getattr(wanted, name), getattr(found, name)
                if left is None:
                    assert right is None
                else:
                    assert right.tolist() == left[: right.numel()].tolist()
                    assert right.numel() >= 3
