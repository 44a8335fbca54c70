import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsacp.app.scheduling import (
    BlockPool,
    BlockTables,
    EngineStep,
    KvGroup,
    Scheduler,
    SchedulerConfig,
)
from dsacp.app.traces.read import TraceRequest
from dsacp.core import CapacityError, LayoutError

GROUPS = (KvGroup("swa", 4, 40), KvGroup("c4", 16, 12))


def make(trace, *, groups=GROUPS, **changes):
    limits = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 24,
        "num_draft_tokens": 3,
        "max_model_len": 96,
        "step_ms": 10.0,
        **changes,
    }
    config = SchedulerConfig(groups=groups, **limits)
    tables = BlockTables(groups, config.max_num_seqs + 1, config.max_model_len)
    return Scheduler(config, trace, tables), tables


def outcome(step: EngineStep, source: random.Random | None = None, k: int = 3):
    sampled = [
        0 if not row.samples else 1 + (source.randint(0, row.num_drafts) if source else 0)
        for row in step.rows
    ]
    return sampled, [k if row.samples else 0 for row in step.rows]


def run(scheduler, check=None, seed=0):
    source = random.Random(seed)
    steps = []
    while (step := scheduler.next_step()) is not None:
        if check is not None:
            check(step)
        scheduler.finish(step, *outcome(step, source))
        steps.append(step)
        assert len(steps) < 5000
    return steps


def test_prompt_is_chunked_and_then_decoded_with_drafts():
    scheduler, _ = make([TraceRequest(0.0, 50, 3)])
    steps = run(scheduler, seed=1)
    first = [(s.rows[0].start, s.rows[0].num_tokens, s.rows[0].samples) for s in steps[:3]]
    assert first == [(0, 24, False), (24, 24, False), (48, 2, True)]
    decode = steps[3].rows[0]
    assert (decode.start, decode.num_tokens, decode.num_drafts, decode.is_decode) == (
        50,
        4,
        3,
        True,
    )
    assert steps[3].uniform
    assert not steps[0].uniform


def test_rejected_drafts_are_computed_again():
    scheduler, _ = make([TraceRequest(0.0, 5, 9)])
    step = scheduler.next_step()
    scheduler.finish(step, [1], [3])
    step = scheduler.next_step()
    scheduler.finish(step, [2], [3])
    assert scheduler.next_step().rows[0].start == 7


def test_arrivals_are_honoured_and_an_idle_engine_skips_ahead():
    scheduler, _ = make(
        [TraceRequest(0.0, 3, 1), TraceRequest(15.0, 3, 1), TraceRequest(500.0, 3, 1)]
    )
    steps = run(scheduler)
    assert [(s.time_ms, s.rows[0].request_id) for s in steps] == [(0.0, 0), (15.0, 1), (500.0, 2)]


def test_decode_rows_come_before_an_earlier_prompt_chunk():
    scheduler, _ = make(
        [TraceRequest(0.0, 90, 2), TraceRequest(0.0, 3, 8)], max_num_batched_tokens=20
    )
    steps = run(scheduler)
    mixed = [s for s in steps if len(s.rows) == 2]
    assert mixed
    for step in steps:
        kinds = [row.is_decode for row in step.rows]
        assert kinds == sorted(kinds, reverse=True)


def test_fewer_drafts_near_the_end_of_the_model():
    scheduler, _ = make([TraceRequest(0.0, 93, 50)], max_model_len=96, max_num_batched_tokens=96)
    steps = run(scheduler)
    assert max(row.seq_len for s in steps for row in s.rows) <= 96
    assert steps[1].rows[0].num_drafts == 2
    assert not steps[1].uniform


def test_prompt_without_room_to_generate_is_refused():
    scheduler, _ = make(
        [TraceRequest(0.0, 96, 1), TraceRequest(0.0, 95, 1)], max_num_batched_tokens=96
    )
    steps = run(scheduler)
    assert scheduler.refused == (0,)
    assert scheduler.finished == [1]
    assert len(steps) == 1


def test_freed_block_is_the_next_one_handed_out():
    pool = BlockPool(GROUPS)
    assert pool.grow(1, 9)
    assert pool.grow(2, 5)
    taken = pool.blocks(1)[0][-1]
    pool.release(1)
    assert pool.grow(3, 1)
    assert pool.blocks(3)[0] == [taken]


def test_growth_that_fails_in_one_group_changes_no_group():
    pool = BlockPool((KvGroup("wide", 1, 100), KvGroup("narrow", 1, 4)))
    assert not pool.grow(1, 5)
    assert pool.num_free == {"wide": 99, "narrow": 3}
    assert pool.owners == ()


def test_preempted_request_starts_over_and_finishes():
    trace = [TraceRequest(0.0, 20, 40), TraceRequest(0.0, 20, 40), TraceRequest(0.0, 20, 40)]
    scheduler, _ = make(trace, groups=(KvGroup("swa", 4, 26),))
    steps = run(scheduler)
    preempted = [request for s in steps for request in s.preempted]
    assert preempted
    assert 0 not in preempted
    assert sorted(scheduler.finished) == [0, 1, 2]


def test_pool_below_one_request_is_refused_with_both_numbers():
    with pytest.raises(CapacityError, match=r"needs 24 blocks of group 'swa', it has 20"):
        make([], groups=(KvGroup("swa", 4, 21),))


@pytest.mark.parametrize(("sampled", "drafts"), [([0], [3]), ([2], [3]), ([1], [4])])
def test_impossible_outcome_changes_nothing(sampled, drafts):
    scheduler, _ = make([TraceRequest(0.0, 5, 9)])
    step = scheduler.next_step()
    with pytest.raises(LayoutError, match="request 0"):
        scheduler.finish(step, sampled, drafts)
    scheduler.finish(step, [1], [3])


REQUESTS = st.lists(
    st.builds(
        TraceRequest,
        st.integers(0, 300).map(float),
        st.integers(1, 80),
        st.integers(1, 30),
    ),
    min_size=1,
    max_size=12,
).map(lambda requests: sorted(requests, key=lambda request: request.arrival_ms))


@settings(max_examples=40, deadline=None)
@given(REQUESTS, st.integers(0, 2**16), st.integers(5, 40), st.integers(26, 60))
def test_every_step_keeps_the_rules(trace, seed, budget, blocks):
    groups = (KvGroup("swa", 4, blocks), KvGroup("c4", 16, 9))
    scheduler, tables = make(trace, groups=groups, max_num_batched_tokens=budget)
    kept = {name: table.data_ptr() for name, table in tables.tensors.items()}

    def check(step: EngineStep) -> None:
        assert 1 <= step.num_reqs <= 4
        assert step.num_tokens <= budget
        assert len({row.request_id for row in step.rows}) == step.num_reqs
        assert all(trace[row.request_id].arrival_ms <= step.time_ms for row in step.rows)
        for index, group in enumerate(groups):
            owned = [
                b
                for request in scheduler.pool.owners
                for b in scheduler.pool.blocks(request)[index]
            ]
            assert len(owned) == len(set(owned))
            assert 0 not in owned
            table = tables.tensors[group.name]
            assert table.data_ptr() == kept[group.name]
            for row, plan in enumerate(step.rows):
                blocks_of_row = scheduler.pool.blocks(plan.request_id)[index]
                assert len(blocks_of_row) >= group.blocks_for(plan.seq_len)
                expected = torch.zeros(table.shape[1], dtype=torch.int32)
                expected[: len(blocks_of_row)] = torch.tensor(blocks_of_row, dtype=torch.int32)
                assert torch.equal(table[row], expected)
            assert not table[step.num_reqs :].any()

    run(scheduler, check, seed)
    assert sorted(scheduler.finished) == list(range(len(trace)))
    cut = [min(r.output_length, max(96 - r.input_length, 0)) for r in trace]
    assert sum(cut) <= scheduler.generated <= sum(r.output_length for r in trace)
    assert scheduler.pool.num_free == {"swa": blocks - 1, "c4": 8}
