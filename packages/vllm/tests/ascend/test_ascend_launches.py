"""Launches of a build on the device: ours against upstream's on the same batch."""

import random
from typing import Any

import pytest
from ascend_double import HostDouble
from ascend_double.batches import BLOCK, advance, common_metadata, sampled_positions
from ascend_double.launches import device_launches
from ascend_double.scenario import concurrency, stock

from dsacp.vllm.ascend.plugin import choose

TARGET = {1: (23, 15), 4: (31, 18), 128: (23, 15)}
"""Launches of a target's step by compress ratio: upstream's, ours."""
DRAFT = (16, 14)
"""Launches of a draft step: upstream's, ours. Two RoPE configurations, three of sixteen real."""


def host() -> HostDouble:
    # buffers of the size that upstream's draft steps need, so that it does not fail
    return HostDouble(3, 4, 0, max_num_seqs=64, max_num_batched_tokens=64, capture_sizes=(16,))


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


def draft_counts(cls: Any) -> list[Any]:
    """Drive two rounds of draft steps; returns the counters of the second."""
    double, batch = host(), concurrency()
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
    return seen[2:]


def test_draft_step_launches_less() -> None:
    upstream, ours = (draft_counts(cls) for cls in classes())
    assert [counter.count for counter in upstream] == [DRAFT[0]] * 2
    assert [counter.count for counter in ours] == [DRAFT[1]] * 2
    assert all(counter.by_name["dsacp::draft_steps"] == 1 for counter in ours)


def test_draft_step_makes_no_tensor_from_host_data() -> None:
    """Factories escape the count above; ours has none but scratch that torch allocates."""
    for counter in draft_counts(choose(stock())):
        assert counter.factories == {}
