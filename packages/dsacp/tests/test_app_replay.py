import gc
import math
from dataclasses import replace

import pytest
import torch

from dsacp.app.replay.acceptance import GeometricAcceptance
from dsacp.app.replay.batches import HostBatch
from dsacp.app.replay.executors import warm_up_batch
from dsacp.app.replay.memory import needed_bytes
from dsacp.app.replay.passes import MetadataOnly
from dsacp.app.replay.report import report_rows
from dsacp.app.replay.session import make_setup, prepare, run_replay
from dsacp.app.replay.settings import ReplayConfig, SettingsError, default_captures, resolve
from dsacp.app.scheduling import EngineStep, RowPlan
from dsacp.app.traces.read import TraceRequest
from dsacp.app.traces.synthetic import synthetic_trace
from dsacp.core import CapacityError, LayoutError

TRACE = synthetic_trace(7, seed=3)
BASE = ReplayConfig(
    drafter="none",
    tp=2,
    max_num_seqs=5,
    max_num_batched_tokens=40,
    capture_sizes=(4, 16, 32),
    workers=1,
)


def silent(finished, steps):
    pass


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tp": 1, "draft_tokens": 1},
        {"tp": 3, "draft_tokens": 2, "padding": "repeat", "overflow": "saturate"},
        {"tp": 3, "draft_tokens": 5, "layout": "tokens"},
        {"capture_sizes": ()},
        {"max_model_len": 45, "overflow": "reset"},
        {"max_model_len": 45, "overflow": "saturate", "layout": "tokens"},
        {"kv_tokens": 256, "max_model_len": 256, "padding": "repeat"},
    ],
    ids=lambda changes: ",".join(f"{key}={value}" for key, value in changes.items()) or "base",
)
def test_eager_and_graph_agree_with_each_other_and_with_the_schedule(changes):
    result = run_replay(replace(BASE, **changes), TRACE, silent)
    assert result.findings.examples == []
    assert result.ok
    assert result.requests + result.refused == len(TRACE)
    assert result.findings.fields_compared > 0
    captured = {size for size in result.buckets if size}
    assert bool(captured) == (changes.get("capture_sizes") != ())


def test_more_captured_rows_than_requests_were_allowed():
    """vllm-ascend #10763 crashed here: max_num_seqs 6, capture 16 tokens, 3 and 4 requests."""
    config = replace(BASE, max_num_seqs=6, capture_sizes=(16,), layout="tokens", draft_tokens=3)
    result = run_replay(config, TRACE, silent)
    assert result.ok
    assert result.buckets[16] > 0


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_word_that_differs_is_named(role):
    replay = prepare(BASE, TRACE, (0, 1))
    builder = getattr(replay._graph.ranks[1], role)
    group = builder.config.groups[0].name
    region = next(r for r in builder.regions() if (r.group, r.field) == (group, "positions"))
    storage = builder.storages()[0]
    word = (region.address - storage.data_ptr()) // 4
    compare = replay._comparer.compare

    def corrupt(index, owner, left, right):
        storage[word] += 1
        compare(index, owner, left, right)

    replay._comparer.compare = corrupt
    result = replay.run(silent)
    assert not result.ok
    text = str(result.findings.examples[0])
    assert f"rank 1 {role} draft step 0" in text
    assert f"groups['{group}'].positions" in text
    assert "entries, first at [0]" in text


def test_both_wrong_in_the_same_way_differs_from_the_schedule():
    replay = prepare(BASE, TRACE, (0,))
    table = replay.setup.tables.tensors["draft"]
    eager = replay._eager.draft

    def shifted(batch, rejected, target):
        table.add_(1)
        try:
            return eager(batch, rejected, target)
        finally:
            table.sub_(1)

    object.__setattr__(replay._eager, "draft", shifted)
    graph = replay._graph.draft

    def shifted_graph(batch, rejected, target):
        table.add_(1)
        try:
            return graph(batch, rejected, target)
        finally:
            table.sub_(1)

    object.__setattr__(replay._graph, "draft", shifted_graph)
    result = replay.run(silent)
    assert "the schedule says" in str(result.findings.examples[0])
    assert "slot_mapping" in str(result.findings.examples[0])


def test_metadata_that_moves_is_counted():
    replay = prepare(BASE, TRACE, (0,))
    build = replay._eager.target

    def cloned(batch):
        ((step,),), result = build(batch)
        group = step.groups["swa"]
        moved = replace(
            group, seq_lens=torch.cat([group.seq_lens, group.seq_lens])[: group.seq_lens.numel()]
        )
        return ((replace(step, groups={**step.groups, "swa": moved}),),), result

    object.__setattr__(replay._eager, "target", cloned)
    kept = []
    look = replay._addresses.look

    def keep(label, metadata):
        kept.append(metadata)
        look(label, metadata)

    replay._addresses.look = keep
    result = replay.run(silent)
    assert result.findings.addresses_moved > 0
    assert not result.ok


def test_overwritten_guard_word_stops_the_replay():
    replay = prepare(BASE, TRACE, (0,))
    builder = replay._graph.ranks[0].draft
    region = next(r for r in builder.regions() if r.field == "seq_lens")
    storage = builder.storages()[0]
    storage[(region.address + region.nbytes - storage.data_ptr()) // 4] = 7
    with pytest.raises(CapacityError, match=r"graph\.rank0\.draft"):
        replay.run(silent)


def test_graphs_outlive_the_shapes_that_a_builder_remembers(monkeypatch):
    """A long trace has more eager shapes than are cached; work splits that graphs read were freed.

    The CPU tape found it in the 2000-request replay, after 1024 shapes.
    """
    monkeypatch.setattr("dsacp.drafting_cache.session.CACHED_SHAPES", 2)
    assert run_replay(BASE, TRACE, silent).ok


def test_ranks_shared_by_processes_find_the_same():
    alone = run_replay(BASE, TRACE, silent)
    shared = run_replay(replace(BASE, workers=2), TRACE, silent)
    assert shared.ranks == alone.ranks == (0, 1)
    assert shared.steps == alone.steps
    assert shared.accepted == alone.accepted
    assert shared.findings.fields_compared == alone.findings.fields_compared
    assert shared.ok


def test_acceptance_is_geometric_and_seeded():
    rows = tuple(RowPlan(i, 9, 4, 3, is_decode=True, samples=True) for i in range(2000))
    step = EngineStep(0, 0.0, rows, True, ())
    first = GeometricAcceptance(0.7, 3, seed=5).sampled(step)
    assert first == GeometricAcceptance(0.7, 3, seed=5).sampled(step)
    for accepted in (1, 2, 3):
        share = sum(count > accepted for count in first) / len(first)
        assert abs(share - 0.7**accepted) < 0.04
    assert set(GeometricAcceptance(1.0, 3, 0).sampled(step)) == {4}
    assert set(GeometricAcceptance(0.0, 3, 0).sampled(step)) == {1}


def test_limits_follow_the_trace_and_the_grid():
    limits = resolve(replace(BASE, max_num_seqs=None, tp=8, draft_tokens=3), TRACE)
    longest = max(request.input_length + request.output_length for request in TRACE)
    assert limits.max_model_len >= longest + 4
    assert limits.max_num_seqs == 64
    assert limits.capture_sizes == (8, 16, 32)
    assert limits.asked_sizes == (4, 16, 32)
    assert limits.kv_tokens >= 2 * limits.max_model_len


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tp": 0}, "--tp in 1..64 as a whole number, found 0"),
        ({"tp": 65}, "--tp in 1..64 as a whole number, found 65"),
        ({"tp": 2.0}, "--tp in 1..64 as a whole number, found 2.0"),
        ({"draft_tokens": 65}, "--draft-tokens in 1..64"),
        ({"seed": 10**20}, "--seed in -9223372036854775808..9223372036854775807"),
        ({"max_model_len": 2**31}, "--max-model-len >= 2 .* below 2147483648"),
        ({"acceptance": math.nan}, "--acceptance in 0..1, found nan"),
        ({"step_ms": math.nan}, "--step-ms above 0 and finite, found nan"),
        ({"step_ms": math.inf}, "--step-ms above 0 and finite, found inf"),
        ({"acceptance": 1.5}, "--acceptance in 0..1, found 1.5"),
        ({"padding": "zeros"}, "--padding as one of dummy, repeat, found 'zeros'"),
        ({"step_ms": -1.0}, "--step-ms above 0"),
        ({"capture_sizes": (8, 0)}, "--capture-sizes >= 1 as a whole number, found 0"),
    ],
)
def test_settings_outside_their_range_are_named(changes, message):
    with pytest.raises(LayoutError, match=message):
        replace(BASE, **changes)


def test_settings_that_the_buffers_refuse_at_capture_are_settings_errors():
    """``--max-num-seqs 5000`` ended as if the replay had found a mismatch."""
    with pytest.raises(SettingsError, match="at most 16384 rows in a planned step"):
        run_replay(replace(BASE, tp=1, capture_sizes=None, max_num_seqs=5000), TRACE, silent)


@pytest.mark.parametrize(
    ("changes", "longest"),
    [({}, 2_000_000_000), ({"max_model_len": 2**31 - 1}, 9), ({"capture_sizes": (40_000_000,)}, 9)],
)
@pytest.mark.parametrize("drafter", ["mtp", "none"])
def test_what_exceeds_the_machine_is_refused_before_it_is_allocated(drafter, changes, longest):
    trace = (TraceRequest(0.0, longest, 1),)
    with pytest.raises((SettingsError, LayoutError), match=r"GiB|an arena below"):
        make_setup(replace(BASE, drafter=drafter, **changes), trace)


def test_memory_is_counted_as_it_is_allocated():
    """Builders of two executors, on every rank; the caches of the model likewise."""
    replay = prepare(BASE, TRACE, (0, 1))
    setup = replay.setup
    counted = needed_bytes(setup.limits, setup.capacity, None, TRACE, 2)
    held = sum(
        storage.nbytes
        for executor in (replay._eager, replay._graph)
        for rank in executor.ranks
        for builder in rank.named.values()
        for storage in builder.storages()
    )
    assert 0.8 * held < counted["buffers"] <= held
    assert counted["block tables"] == sum(table.nbytes for table in setup.tables.tensors.values())


def builds(replay, sizes):
    """Build one prompt of every size with both executors' builders, compared and looked at."""
    for size in sizes:
        row = RowPlan(0, 0, size, 0, is_decode=False, samples=True)
        batch = HostBatch.of(EngineStep(0, 0.0, (row,), False, ()), None).first()
        for eager, graph in zip(replay._eager.ranks, replay._graph.ranks, strict=True):
            for role, builder in eager.named.items():
                others = graph.named[role].build_all(batch)
                for one, other in zip(builder.build_all(batch), others, strict=True):
                    replay._comparer.compare(0, role, one, other)
                    replay._addresses.look(role, one)


def live_objects(kind=object):
    gc.collect()
    return sum(issubclass(type(item), kind) for item in gc.get_objects())


def test_memory_counts_the_shapes_that_builders_remember():
    """At tp 3 they took 480 MB that no check had counted, 8,000 steps into a long trace."""
    replay = prepare(BASE, TRACE, (0, 1))
    setup = replay.setup
    counted = needed_bytes(setup.limits, setup.capacity, None, TRACE, 2)["shapes remembered"]
    possible = setup.limits.max_num_seqs * setup.limits.max_num_batched_tokens
    before = live_objects(torch.Tensor)
    builds(replay, range(1, 11))
    replay._comparer._pairs.clear()
    views = live_objects(torch.Tensor) - before
    assert views > 0
    a_view = 600  # of C++ and Python, beside what holds it
    assert counted / possible > views / 10 * a_view
    huge = replace(setup.limits, max_num_seqs=2**20)
    assert needed_bytes(huge, setup.capacity, None, TRACE, 2)["shapes remembered"] < 2**30


def test_steps_leave_nothing_behind_once_shapes_are_forgotten(monkeypatch):
    """More shapes than are remembered, again and again, hold as much as they did the first time."""
    monkeypatch.setattr("dsacp.drafting_cache.session.CACHED_SHAPES", 4)
    monkeypatch.setattr("dsacp.app.replay.compare.REMEMBERED", 16)
    replay = prepare(replace(BASE, tp=1, capture_sizes=(4,)), TRACE, (0,))
    held = []
    for _ in range(3):
        builds(replay, range(1, 11))
        held.append(live_objects())
    # a leak adds an object a build at least; the interpreter's own come and go by one or two
    assert held[2] - held[1] < 10


def test_no_more_blocks_than_requests_can_use():
    """``--kv-tokens 2000000000`` listed 250 million blocks before the first step."""
    limits = resolve(replace(BASE, kv_tokens=2_000_000_000), TRACE)
    assert limits.kv_tokens == BASE.max_num_seqs * limits.max_model_len


@pytest.mark.parametrize("steps", [0, 2])
def test_a_replay_that_ends_early_is_not_green(steps):
    """A clock of NaN let three of five requests vanish, and nothing differed."""
    replay = prepare(BASE, TRACE, (0,))
    following = replay._scheduler.next_step
    left = iter(range(steps))
    replay._scheduler.next_step = lambda: None if next(left, None) is None else following()
    result = replay.run(silent)
    assert result.findings.mismatches == 0
    assert result.steps == steps
    assert not result.ok
    assert f"of {len(TRACE)}, incomplete" in dict(report_rows(result))["requests"]
    assert result.as_json()["complete"] is False


def test_a_trace_of_which_nothing_runs_is_refused():
    """``--max-model-len 5`` refused every request, and the replay was green after 0 steps."""
    with pytest.raises(LayoutError, match=r"--max-model-len 2, found \d+ tokens in the shortest"):
        resolve(replace(BASE, max_model_len=2), TRACE)
    with pytest.raises(LayoutError, match="found an empty trace"):
        resolve(BASE, ())


def test_default_captures_are_few_however_many_requests():
    assert default_captures(6, 4) == (4, 8, 16, 32)
    assert default_captures(64, 1) == (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64)
    assert default_captures(300, 1)[-4:] == (64, 128, 256, 512)
    assert len(default_captures(100_000_000, 4)) < 40


def test_warm_up_batch_is_uniform_and_metadata_only_reads_nothing():
    batch = warm_up_batch(3, 4, 16)
    assert batch.query_start_loc.tolist() == [0, 4, 8, 12]
    assert batch.seq_lens.tolist() == [4, 4, 4]
    assert MetadataOnly().target(()) is None
    assert MetadataOnly().draft((), None) is None
