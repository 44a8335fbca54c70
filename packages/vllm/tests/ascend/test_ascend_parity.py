"""Upstream's builder and ours, side by side in one process, on random batches.

Both sides call the same stand-in for the planning ops, so equal plans prove that the *arguments*
are equal; what the op makes of them is the device's.
"""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from ascend_double import HostDouble, install
from ascend_double.batches import (
    BLOCK,
    advance,
    common_metadata,
    draw,
    sampled_positions,
)
from ascend_double.calls import check_calls, recorded
from ascend_double.compare import TOTALS, Parity
from ascend_double.ops import NAMES

from dsacp.vllm.ascend.plugin import choose

BATCHES = 80
"""Batches of one configuration; 26 configurations."""

CONFIGURATIONS = [
    (drafts, tp, (drafts * 7 + tp) % tp) for drafts in range(1, 6) for tp in (1, 2, 3, 4, 16)
] + [(3, 8, 7)]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def classes() -> tuple[type[Any], type[Any]]:
    stock = install().dsa_cp.AscendDSACPMetadataBuilder
    ours = choose(stock)
    assert ours is not stock
    return stock, ours


@pytest.mark.parametrize(("drafts", "tp", "rank"), CONFIGURATIONS)
def test_every_field_of_every_step_is_equal(drafts: int, tp: int, rank: int) -> None:
    """Target step of every KV group, the drafter's first pass and all its later steps."""
    # request buffers of the size that upstream's draft steps need, so that it does not fail
    host = HostDouble(drafts, tp, rank, max_num_seqs=144, max_num_batched_tokens=144)
    rng = random.Random(1000 * drafts + tp)
    stock, ours = classes()
    builders = {
        ratio: (host.builder(stock, ratio), host.builder(ours, ratio)) for ratio in (1, 4, 128)
    }
    for number in range(BATCHES):
        batch = draw(rng, host)
        seed = rng.randrange(1 << 30)
        ratio = (1, 4, 128)[number % 3]
        parity = Parity(host, ratio)
        parity.padded_tokens = -(-batch.tokens // tp) * tp
        real = sum(batch.lengths)
        results, calls = [], []
        for builder in builders[ratio]:
            common = common_metadata(batch, host, random.Random(seed))
            with recorded() as asked:
                step = builder.build(
                    common_prefix_len=0,
                    common_attn_metadata=common,
                    num_reqs_actual=batch.real,
                    common_ratio_to_sas_metadata={},
                    block_size=BLOCK,
                )
            results.append(step)
            calls.append(asked)
        parity.check(*results, real, batch.real)
        check_calls(*calls)
        TOTALS["target steps"] += 1
        _drafts(host, builders[1], batch, seed)
        TOTALS["batches"] += 1
        TOTALS[batch.kind] += 1
        TOTALS["fields"] += sum(parity.counts.values())


def _drafts(host: HostDouble, builders: Any, batch: Any, seed: int) -> None:
    parity = Parity(host)
    parity.padded_tokens = -(-batch.tokens // host.tp_size) * host.tp_size
    if not batch.graph:
        batch = replace(batch, rows=batch.real)  # the proposer drops the runner's dummy request
    steps, calls = [], []
    for builder in builders:
        with recorded() as asked:
            steps.append(_rounds(host, builder, batch, seed))
        calls.append(asked)
    check_calls(*calls)
    real = sum(batch.lengths)
    for index, pair in enumerate(zip(*steps, strict=True)):
        parity.check(*pair, real if index == 0 else batch.real, batch.real)
        TOTALS["draft steps"] += 1
    TOTALS["fields"] += sum(parity.counts.values())


def _rounds(host: HostDouble, builder: Any, batch: Any, seed: int) -> list[Any]:
    common = common_metadata(batch, host, random.Random(seed))
    steps = [builder.build(0, common, None, common_ratio_to_sas_metadata={}, block_size=BLOCK)]
    proposer, positions = host.proposer(builder), sampled_positions(batch, common).clone()
    for index in range(1, host.drafts):
        common, metadata = advance(proposer, index, common, batch, positions)
        steps.append(metadata)
    return steps


def test_what_is_asked_of_the_ops_is_compared() -> None:
    """The comparison can fail: on any argument but the two bounds, and on too low a bound."""
    asked = {"batch_size": 3, "max_seqlen_q": 4, "cu_seqlens_q": torch.arange(4)}
    check_calls([(NAMES[0], asked)], [(NAMES[0], {**asked, "max_seqlen_q": 5})])
    for change in ({"batch_size": 4}, {"max_seqlen_q": 3}, {"cu_seqlens_q": torch.arange(3)}):
        with pytest.raises(AssertionError, match=next(iter(change))):
            check_calls([(NAMES[0], asked)], [(NAMES[0], {**asked, **change})])
