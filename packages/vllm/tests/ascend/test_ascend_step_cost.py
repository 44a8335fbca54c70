"""What a speculative step costs beside upstream's own proposer, and that the counter can tell."""

from importlib.metadata import version
from typing import Any

import pytest
import step_cost
import torch
from ascend_double.launches import device_launches
from ascend_double.proposal import Proposal
from ascend_double.scenario import stock
from ascend_double.step_cost import count_launches, measure_host

from dsacp.vllm.ascend.plugin import choose

REQUESTS, RANKS = 16, 4
VERSION = "0.26.0rc1"
FIGURES = {
    ("upstream", 3): (21, 48, 32, 11),
    ("upstream", 5): (21, 94, 64, 11),
    ("ours", 3): (12, 48, 28, 11),
    ("ours", 5): (12, 94, 56, 11),
}
"""First build, advance, draft builds, rest: 112 and 190 launches, with ours 99 and 173.

Of a step later than 2, upstream's advance takes 23 (the first one 25) and its build 16, ours 14;
each advance and its build are the proposer's rhythm, so what ours saves is bounded by the builds.
"""


def builder_class(whose: str) -> Any:
    return stock() if whose == "upstream" else choose(stock())


@pytest.mark.parametrize(("whose", "drafts"), FIGURES)
def test_launches_of_a_step(whose: str, drafts: int) -> None:
    proposal = Proposal(builder_class(whose), drafts, REQUESTS, REQUESTS, RANKS)
    cost = count_launches(proposal, stock())
    assert cost.total == sum(cost.by_op.values()), "every launch is in one part"
    if version("vllm-ascend") == VERSION:
        assert cost.parts == FIGURES[whose, drafts], cost.by_op


def test_launches_do_not_depend_on_the_requests() -> None:
    """One that ran per request would show here; padding costs ours an operator or two."""
    found = {
        real: count_launches(Proposal(stock(), 3, real, REQUESTS, RANKS), stock()).parts
        for real in (1, 13, REQUESTS)
    }
    assert found[1] == found[13]
    assert abs(sum(found[13]) - sum(found[REQUESTS])) <= 4


def test_both_builders_prepare_the_same_steps() -> None:
    """What is counted is the whole step: K metadata, with equal slots and positions."""
    steps = []
    for whose in ("upstream", "ours"):
        proposal = Proposal(builder_class(whose), 3, 13, REQUESTS, RANKS)
        steps.append([step.req_metadata for step in proposal.run(proposal.inputs(0))])
    assert [len(found) for found in steps] == [3, 3]
    for index, (left, right) in enumerate(zip(*steps, strict=True)):
        real = 13 if index else 13 * 4
        assert torch.equal(left.slot_mapping[:real], right.slot_mapping[:real])
        assert torch.equal(left.input_positions[:real], right.input_positions[:real])


def test_a_tensor_of_the_host_is_no_launch() -> None:
    """The counter tells the sides apart: mirrors and arrays are the host's, the rest is not."""
    proposal = Proposal(stock(), 3, REQUESTS, REQUESTS, RANKS)
    common = proposal.inputs(0).common
    with device_launches(common, stock(), proposal.mirrors) as counter:
        proposal.mirrors[0].add(1)
        torch.from_numpy(proposal.own.token_arange_np).clone()
        assert counter.count == 0
        common.seq_lens.add(1)
        assert dict(counter.by_name) == {"aten::add": 1}


def test_host_time_is_taken_without_kernels() -> None:
    proposal = Proposal(choose(stock()), 3, REQUESTS, REQUESTS, RANKS)
    time = measure_host(proposal, stock(), steps=10)
    assert 0 < time.least <= time.median
    proposal.run(proposal.inputs(1))
    starts = proposal.builder.dsacp_banks.made[1].local.query_start_loc[: REQUESTS + 1]
    assert starts[-1] == REQUESTS, "kernels have bodies again: the rank owns a quarter of 64"


def test_the_command_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    step_cost.main(["--drafts", "2", "--requests", "8", "--steps", "5"])
    answer = capsys.readouterr().out
    rows = [line for line in answer.splitlines() if line.startswith("|")]
    assert len(rows) == 4
    assert rows[2].startswith("| upstream | 2 | 21 |")
    assert rows[3].startswith("| dsacp | 2 | 12 |")
    assert version("vllm-ascend") in answer
