"""Launches of a build on the device: ours against upstream's on the same batch."""

import random
from typing import Any

import pytest
from ascend_double import HostDouble
from ascend_double.batches import BLOCK, Batch, advance, common_metadata, sampled_positions
from ascend_double.launches import COPY, device_launches
from ascend_double.scenario import concurrency, stock

from dsacp.vllm.ascend.plugin import choose

TARGET = {1: (23, 15), 4: (31, 18), 128: (23, 15)}
"""Launches of a target's step by compress ratio: upstream's, ours."""
DRAFT = (16, 14)
"""Launches of a draft step: upstream's, ours. Two RoPE configurations, three of sixteen real."""
MIXED = Batch("mixed", (31, 4, 1), (0, 300, 9), 36, 3, (True, False, False), (0, 0, 0))
MIXED_DRAFT = 12
"""Ours of a mixed draft step, no row of which is padding; upstream launches as ever."""
MADE = 44
"""Launches of making both banks of a later draft step, the persistent and the eager one."""


def host() -> HostDouble:
    # buffers of the size that upstream's draft steps need, so that it does not fail
    return HostDouble(3, 4, 0, max_num_seqs=64, max_num_batched_tokens=64, capture_sizes=(16,))


def small_host() -> HostDouble:
    """Return one whose later banks hold 17 rows: a mixed batch is larger than any capture."""
    return HostDouble(3, 4, 0, max_num_seqs=6, max_num_batched_tokens=64, capture_sizes=(16,))


def classes() -> tuple[Any, Any]:
    return stock(), choose(stock())


@pytest.mark.parametrize("ratio", [1, 4, 128])
def test_target_step_launches_less(ratio: int) -> None:
    double, counts = host(), []
    for cls in classes():
        builder = double.builder(cls, ratio)
        for seed in range(2):  # the first build makes the buffers
            common = common_metadata(concurrency(), double, random.Random(seed))
            with device_launches(common, stock()) as counter:
                builder.build(
                    0,
                    common,
                    num_reqs_actual=3,
                    common_ratio_to_sas_metadata={},
                    block_size=BLOCK,
                )
        counts.append(counter.count)
    assert tuple(counts) == TARGET[ratio]
    assert counts[1] < counts[0]


def draft_counts(cls: Any, batch: Batch | None = None) -> list[Any]:
    """Drive two rounds of draft steps, later ones of two; returns all four counters."""
    double = host() if batch is None else small_host()
    batch = batch or concurrency()
    builder, seen = double.builder(cls), []
    stock_build = builder.build_for_drafting

    def counted(common: Any, index: int, **kwargs: Any) -> Any:
        with device_launches(common, stock()) as counter:
            result = stock_build(common, index, **kwargs)
        seen.append(counter)
        return result

    builder.build_for_drafting = counted
    for seed in range(2):
        common = common_metadata(batch, double, random.Random(seed))
        proposer, positions = double.proposer(builder), sampled_positions(batch, common).clone()
        for index in (1, 2):
            common, _ = advance(proposer, index, common, batch, positions)
    return seen


def test_draft_step_launches_less() -> None:
    upstream, ours = (draft_counts(cls)[2:] for cls in classes())
    assert [counter.count for counter in upstream] == [DRAFT[0]] * 2
    assert [counter.count for counter in ours] == [DRAFT[1]] * 2
    assert all(counter.by_name["dsacp::draft_steps"] == 1 for counter in ours)


def test_draft_step_makes_no_tensor_from_host_data() -> None:
    """Factories escape the count above; ours has none but scratch that torch allocates."""
    for counter in draft_counts(choose(stock()))[2:]:
        assert counter.factories == {}
        assert counter.by_name[COPY] == 0


def test_a_mixed_draft_step_makes_buffers_once() -> None:
    """A prefill that drafts over more tokens than any capture: its buffers come with the first.

    Making them is what each such step would cost without keeping them: fills, and tables that are
    copied from the host's memory, for which the device may wait.
    """
    upstream, ours = (draft_counts(cls, MIXED) for cls in classes())
    assert [counter.count for counter in upstream] == [DRAFT[0]] * 4
    assert [counter.count for counter in ours[2:]] == [MIXED_DRAFT] * 2
    assert [counter.by_name[COPY] for counter in ours] == [6, 6, 0, 0]
    made = [counter.count - MIXED_DRAFT for counter in ours]
    assert made == [MADE, MADE, 0, 0]
