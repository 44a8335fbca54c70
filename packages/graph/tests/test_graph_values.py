"""Incidents of stale values, shared bytes and writes past the end: fail loudly or be right."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from dsacp.core import GUARD_WORD, AliasError, CapacityError, StaleValueError
from dsacp.graph import capture

Make = Callable[..., Any]


def window_sum(keys: Tensor, seq_lens: Tensor) -> Tensor:
    """Sum of the keys that each request may see: any stale length changes it."""
    visible = torch.arange(keys.numel()) < seq_lens[:, None]
    return (keys * visible).sum(1)


@pytest.mark.parametrize(
    ("captured", "replayed"),
    [([8, 3], [500, 77]), ([4096, 1, 1, 1], [10, 900, 20, 3000])],
    ids=["llm-scaler #640", "TensorRT-LLM #18769"],
)
def test_replay_sees_new_lengths(make_toy: Make, captured: list[int], replayed: list[int]) -> None:
    """Captured lengths stayed in force and acceptance fell to 0.16 % (intel/llm-scaler #640).

    In #18769 only the first request kept a right plan, so a batch of one looked fine.
    """
    toy = make_toy(rows=6)
    keys = torch.rand(4200, dtype=torch.float64)
    toy.stage(captured)

    def run() -> list[Tensor]:
        return [window_sum(keys, step.groups["swa"].seq_lens) for step in toy.refresh()]

    graph = capture(run, device="cpu")
    toy.stage(replayed)
    graph.replay()
    for step, sums in enumerate(graph.output):
        lens = torch.tensor([length + step for length in replayed] + [0] * (6 - len(replayed)))
        assert torch.equal(sums, window_sum(keys, lens))


def test_no_poison_is_left_after_a_build(toy: Any) -> None:
    """vLLM #48261: the graph ran with the dummy values of its capture."""
    guard = toy.guard()
    toy.stage([4, 4])
    graph = capture(toy.refresh, device="cpu", guard=guard)
    guard.poison()
    toy.stage([7, 6, 5])
    graph.replay()
    guard.check_fresh(graph.output)
    guard.check_words()
    guard.poison()
    toy.refresh(steps=2)
    with pytest.raises(StaleValueError, match="swa/step2/query_start_loc.*6 of 6 untouched"):
        guard.check_fresh(graph.output)
    guard.check_fresh(graph.output[:2])


def test_rows_limit_what_must_be_fresh(toy: Any) -> None:
    """vLLM #48261: only the rows of the batch must be rewritten."""
    guard = toy.guard()
    guard.poison()
    toy.field("swa", 0, "seq_lens")[:3] = 1
    metadata = {"lens": toy.field("swa", 0, "seq_lens"), "banks": toy.field("swa", 1, "seq_lens")}
    guard.check_fresh(metadata, rows={"seq_lens": 3})
    with pytest.raises(StaleValueError, match="entry 3 .2147483647."):
        guard.check_fresh(metadata)


def test_eager_and_graph_buffers_stay_apart(make_toy: Make) -> None:
    """SGLang #37975: a replay rebuilt the eager buffer, not the captured one."""
    eager, graphed = make_toy(), make_toy()
    owners = {"eager": eager.refresh(), "graph": graphed.refresh()}
    eager.guard().check_isolated(owners)
    eager.stage([1, 2])
    eager.refresh()
    before = eager.arena.clone()
    graphed.stage([9, 9, 9])
    graph = capture(graphed.refresh, device="cpu")
    graph.replay()
    assert torch.equal(eager.arena, before)
    mixed = {"eager": eager.refresh(), "graph": (graphed.step(0), eager.step(1))}
    with pytest.raises(AliasError, match="eager.*graph.*swa/step1/query_start_loc"):
        eager.guard().check_isolated(mixed)


def test_write_past_the_end_hits_guard_words(make_toy: Make) -> None:
    """vllm-ascend #16168: 16 rows were written into a buffer of 6, EZ9999 later."""
    toy = make_toy(rows=6)
    guard = toy.guard()
    guard.check()
    start, _ = toy.offsets["swa", 1, "seq_lens"]
    padded = toy.arena[start : start + 16]
    graph = capture(lambda: padded[:8].fill_(101), device="cpu", guard=guard)
    with pytest.raises(
        CapacityError,
        match="found 0x65 0 words past the end of swa/step1/seq_lens.*, 2 words overwritten",
    ):
        graph.replay(check=True)
    toy.refresh()
    guard.fill_words()
    guard.check()


def test_write_before_the_start_is_named_too(toy: Any) -> None:
    """vllm-ascend #16168: an index of -1 writes in front of the first buffer."""
    guard = toy.guard()
    toy.arena[2] = 5
    with pytest.raises(CapacityError, match="2 words before the start of swa/step0/query_start_lo"):
        guard.check()


def test_write_between_two_buffers_names_both(toy: Any) -> None:
    """An index of -1 of one field was reported as a write past the field before it."""
    guard = toy.guard()
    start, _ = toy.offsets["swa", 1, "slot_mapping"]
    toy.arena[start - 1] = 5
    with pytest.raises(CapacityError) as caught:
        guard.check()
    assert "found 0x5 3 words past the end of swa/step1/seq_lens" in str(caught.value)
    assert "and 1 words before the start of swa/step1/slot_mapping" in str(caught.value)
    toy.arena[start - 1] = GUARD_WORD
    toy.arena[-1] = 5
    with pytest.raises(
        CapacityError, match=r"3 words past the end of tail/step2/slot_[^&]*x\w+\), "
    ):
        guard.check()


def test_buffers_made_inside_a_capture_are_refused(toy: Any) -> None:
    """SGLang #22930: graphs that share a pool overwrote each other's buffers."""

    def lazy() -> Tensor:
        if not hasattr(toy, "lazy"):
            toy.lazy = torch.zeros(5, dtype=torch.int32)
        return toy.lazy.add_(1)

    graph = capture(lazy, device="cpu", warmup=0)
    with pytest.raises(AliasError, match="allocated inside the capture"):
        graph.check_outside(graph.output)
    graph.check_outside(toy.refresh())
    toy.lazy = torch.zeros(5, dtype=torch.int32)
    outside = capture(lazy, device="cpu", warmup=0)
    outside.check_outside(toy.lazy)


def test_the_host_may_change_its_inputs_after_staging(toy: Any) -> None:
    """vllm-ascend #10763, vLLM #45100: pinned inputs were reused before the copy."""
    graph = capture(toy.refresh, device="cpu")
    host = [40, 7, 1]
    toy.stage(host)
    host[:] = [-5, -5, -5]
    graph.replay()
    assert graph.output[1].groups["tail"].seq_lens.tolist() == [41, 8, 2, 0, 0]


def test_step_that_shares_bytes_with_another_is_refused(toy: Any) -> None:
    """vllm-ascend #9623, #9605: steps >= 1 hit step 0's entries, last writer wins (I5)."""
    guard = toy.guard()
    built = toy.refresh()
    object.__setattr__(built[1], "groups", {**built[1].groups, "swa": built[0].groups["swa"]})
    with pytest.raises(AliasError, match="step 1, found it in swa/step0/query_start_loc"):
        guard.watch(built)


def test_group_that_uses_another_groups_buffer_is_refused(toy: Any) -> None:
    """vllm-ascend #16980: every draft layer used group 0's tables, acceptance 0 % (I5)."""
    built = toy.refresh()
    object.__setattr__(built[0], "groups", {"swa": built[0].groups["tail"]})
    with pytest.raises(AliasError, match="group 'swa', found it in tail/step0"):
        toy.guard().watch(built)
