"""What a builder leaves behind from batch to batch, and what it refuses before it writes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsacp.core import (
    CapacityError,
    DraftCapacity,
    DsacpError,
    LayoutError,
    StaleAddressError,
    TokenShard,
)
from dsacp.drafting_cache import BoundInputs, DraftBatch, DraftMetadataBuilder, GroupSpec
from dsacp.rope_proxy import RopeConfig, RopeRegistry

Make = Callable[..., Any]


def words(host: Any) -> list[torch.Tensor]:
    """Every word of a builder, guard words included."""
    return [storage.view(torch.int32).clone() for storage in host.builder.storages()]


@st.composite
def batches(draw: st.DrawFn) -> dict[str, Any]:
    reqs = draw(st.integers(0, 6))
    decode = draw(st.booleans())
    queries = [4 if decode else draw(st.integers(1, 9)) for _ in range(reqs)]
    lens = [query + draw(st.integers(0, 90)) for query in queries]
    fits = decode and 0 < reqs <= 4
    bucket = draw(st.sampled_from([None, 16])) if fits else None
    padded = draw(st.sampled_from([None, sum(queries) + 8])) if bucket is None else None
    return {"query_lens": queries, "seq_lens": lens, "bucket": bucket, "padded": padded}


def run(host: Any, batch: dict[str, Any]) -> None:
    plain = host.batch(batch["query_lens"], batch["seq_lens"], bucket=batch["bucket"])
    rows = None if batch["padded"] is None else plain.num_reqs + 1
    counts = {"num_tokens_padded": batch["padded"], "num_reqs_padded": rows}
    host.builder.build_all(DraftBatch(**{**vars(plain), **counts}))


@pytest.mark.parametrize("padding", ["dummy", "repeat"])
@pytest.mark.parametrize("kind", ["draft", "target"])
@settings(max_examples=25, deadline=None)
@given(sequence=st.lists(batches(), min_size=2, max_size=4))
def test_a_used_builder_equals_a_fresh_one(
    make_host: Make,
    draft_specs: Make,
    target_specs: Make,
    padding: str,
    kind: str,
    sequence: list[dict[str, Any]],
) -> None:
    """Local starts and compressed rows of larger batches stayed beyond a smaller one's views."""
    steps = 3 if kind == "draft" else 1
    specs = draft_specs(2) if kind == "draft" else target_specs()
    options = {"groups": specs, "padding": padding, "num_steps": steps}
    used, fresh = make_host(**options), make_host(**options)
    for batch in sequence:
        run(used, batch)
    run(fresh, sequence[-1])
    for left, right in zip(words(used), words(fresh), strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize("kind", ["draft", "target"])
@pytest.mark.parametrize("layout", ["tokens", "requests"])
def test_a_warm_builder_equals_a_fresh_one(
    make_host: Make, draft_specs: Make, target_specs: Make, kind: str, layout: str
) -> None:
    """Triton compiled variants for new request counts while serving; warming leaves no request."""
    specs, steps = (draft_specs(2), 3) if kind == "draft" else (target_specs(), 1)
    options = {"groups": specs, "num_steps": steps, "layout": layout, "padding": "repeat"}
    warm, fresh = make_host(**options), make_host(**options)
    warm.builder.warmup()
    idle = fresh.builder.build_all(fresh.batch([], []))
    assert idle[0].num_reqs == 0
    assert all(map(torch.equal, words(warm), words(fresh)))
    for host in (warm, fresh):
        host.builder.build_all(host.batch([4, 4], [50, 60], bucket=8))
    assert all(map(torch.equal, words(warm), words(fresh)))


def test_warming_up_needs_bound_tables(make_host: Make) -> None:
    host = make_host()
    host.builder.release()
    host.builder.restore()
    with pytest.raises(LayoutError, match="bound block tables, found none"):
        host.builder.warmup()


def test_local_starts_follow_the_token_count(make_host: Make) -> None:
    """An equal last start in a smaller shard left [0, 0, 0, 1, 2, 0, 0]: the tail decreased."""
    options = {"tp": (2, 1), "padding": "repeat", "capture_sizes": (8,)}
    used, fresh = make_host(**options), make_host(**options)
    used.builder.build_all(used.batch([4], [50], bucket=8))
    for host in (used, fresh):
        host.builder.build_all(host.batch([1] * 4, [20, 30, 40, 50]))
    assert all(map(torch.equal, words(used), words(fresh)))


@pytest.mark.parametrize("dims", [(8, 4), (4, 8), (8, 4, 8, 8)])
def test_rope_tails_have_their_own_configurations_width(
    check_guards: Make, dims: tuple[int, ...]
) -> None:
    """Tails of every configuration were as wide as the first one's.

    Guard words were overwritten, live rows stayed, or the first build of all was refused.
    """
    registry = RopeRegistry()
    for layer, dim in enumerate(dims):
        registry.register(str(layer), RopeConfig(dim, 64, 1e4 + layer))
    capacity = DraftCapacity.from_config(4, 64, 3, 1)
    groups, shard = [GroupSpec("g", 16)], TokenShard(0, 1, 0)
    builder = DraftMetadataBuilder(capacity, groups, registry, shard, max_model_len=64)
    builder.bind({"g": torch.ones(capacity.max_reqs, 4, dtype=torch.int32)})
    starts = torch.arange(5, dtype=torch.int32) * 4
    lengths = torch.tensor([9, 20, 30, 40], dtype=torch.int32)
    large = builder.build_all(DraftBatch(4, 16, starts, lengths))
    small = builder.build_all(DraftBatch(1, 4, starts, lengths))
    check_guards(builder)
    for layer in registry.layers:
        cos, sin = registry.tables("cpu")[registry.config_of(layer)]
        for before, after in zip(large, small, strict=True):
            positions = after.groups["g"].positions
            used = len(positions)
            assert torch.equal(before.rope.cos[layer][:used], cos[positions])
            assert torch.equal(before.rope.sin[layer][:used], sin[positions])
            assert before.rope.cos[layer][used:].eq(1).all()
            assert before.rope.sin[layer][used:].eq(0).all()


def test_an_idle_step_has_no_compressed_rows(make_host: Make, target_specs: Make) -> None:
    """An idle rank's padded step skipped the compressor: the last batch's slots stayed in view."""
    host = make_host(groups=target_specs(), num_steps=1, padding="repeat")
    host.builder.build(host.batch([4, 4], [40, 80]))
    idle = DraftBatch(**{**vars(host.batch([], [])), "num_tokens_padded": 8})
    rows = host.builder.build(idle).groups["c4"].compressor
    assert rows.slot_mapping.tolist() == [-1] * 2
    assert rows.requests.tolist() == [-1] * 2
    assert rows.cos.unique().tolist() == [1.0]


def test_later_steps_that_do_not_fit_are_refused_each_time(make_host: Make) -> None:
    """The second try wrote 336 words past its buffers: the first had adopted its extents."""
    host = make_host(layout="requests", capture_sizes=(16,))
    before = words(host)
    for _ in range(3):
        with pytest.raises(CapacityError, match="step 1 needs 12 requests and 12 tokens"):
            host.builder.build_all(host.batch([1] * 9, [9] * 9))
    assert all(map(torch.equal, words(host), before))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"seq_lens": torch.tensor([9, 9])}, LayoutError),
        ({"query_start_loc": torch.zeros(6, dtype=torch.int32)[::2]}, LayoutError),
        ({"num_rejected": torch.zeros(1, dtype=torch.int32)}, LayoutError),
        ({"seq_lens": torch.zeros(2, dtype=torch.int32, device="meta")}, LayoutError),
        ({"num_tokens": 65}, CapacityError),
        ({"bucket": 7}, CapacityError),
    ],
)
def test_bad_batches_touch_no_buffer(
    make_host: Make, changes: dict[str, Any], error: type[DsacpError]
) -> None:
    """Tails of the batch before were cleaned before a wrong dtype was seen."""
    host = make_host()
    host.builder.build_all(host.batch([4] * 6, [50] * 6))
    before = words(host)
    batch = DraftBatch(**{**vars(host.batch([4, 4], [20, 30])), **changes})
    for build in (host.builder.build_all, host.builder.build):
        with pytest.raises(error, match="expected|needs"):
            build(batch)
        assert all(map(torch.equal, words(host), before))


def test_a_table_with_fewer_rows_than_requests_is_refused(make_host: Make) -> None:
    """Requests 3 to 5 of a 3-row table got request 2's slots."""
    host = make_host(padding="repeat")
    host.builder.release()
    host.builder.restore()
    host.builder.bind({"draft0": host.tables["draft0"][:3]})
    host.builder.build(host.batch([4] * 3, [50] * 3))
    with pytest.raises(CapacityError, match="a bound block table has 3 rows, the batch has 6"):
        host.builder.build(host.batch([4] * 6, [50] * 6))


@pytest.mark.parametrize(
    ("tables", "text"),
    [
        (lambda table: {"draft0": table[:, :2].contiguous()}, "reaches max_model_len=512"),
        (lambda table: {"draft0": table, "drafto": table}, "unknown groups .'drafto'."),
        (lambda table: {"draft0": table.tolist()}, "as a tensor, found list"),
    ],
)
def test_tables_that_cannot_serve_are_refused(make_host: Make, tables: Make, text: str) -> None:
    host = make_host()
    host.builder.release()
    host.builder.restore()
    with pytest.raises(LayoutError, match=text):
        host.builder.bind(tables(host.tables["draft0"]))


def test_a_second_bind_must_be_the_first(make_host: Make) -> None:
    """Other inputs, or another view of the same address, were ignored without a word."""
    host = make_host()
    table = host.tables["draft0"]
    host.builder.bind({"draft0": table})
    with pytest.raises(StaleAddressError, match="strides"):
        host.builder.bind({"draft0": table[:-1]})
    inputs = BoundInputs(*(torch.zeros(99, dtype=torch.int32) for _ in range(4)))
    with pytest.raises(StaleAddressError, match="bound query_start_loc"):
        host.builder.bind({"draft0": table}, inputs)


def test_a_later_step_of_several_tokens_a_request_is_refused(make_host: Make) -> None:
    """Saturated lengths moved all of a row's tokens back, onto older slots."""
    host = make_host()
    with pytest.raises(LayoutError, match="8 tokens of 2 requests"):
        host.builder.build_for_drafting(host.batch([4, 4], [50, 60]), 1)
    with pytest.raises(LayoutError, match="no num_rejected"):
        host.builder.build_for_drafting(host.batch([1, 1], [50, 60], [0, 1]), 1)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"sas_policy": "fast"}, "sas_policy of .*found 'fast'"),
        ({"overflow": "wrap"}, "overflow of"),
        ({"max_model_len": 0}, "max_model_len >= 1"),
        ({"guard_words": -1}, "guard_words >= 0"),
        ({"num_steps": 4}, "num_steps in 1..3 .*found 4"),
    ],
)
def test_a_configuration_that_cannot_work_fails_when_made(
    make_host: Make, changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(LayoutError, match=text):
        make_host(**changes)


def test_compressor_groups_have_one_step(make_host: Make, target_specs: Make) -> None:
    with pytest.raises(LayoutError, match="1 step for the compressor groups"):
        make_host(groups=target_specs(), num_steps=3)
