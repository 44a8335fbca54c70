"""What the adapter's own engine leaves open, each test with what will close it.

Nothing here ends an engine or writes outside a buffer: such faults are mended where they stand.
The rest goes when the adapter stands on ``dsacp.drafting_cache.DraftMetadataBuilder``, which has
one answer for every framework. A test that passes unexpectedly fails (strict): then the adapter
has caught up, and the mark is to be taken off.
"""

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from ascend_double import HostDouble
from ascend_double.batches import BLOCK, Batch, common_metadata
from ascend_double.scenario import concurrency, host, run, stock

from dsacp.core import DsacpError
from dsacp.vllm.ascend.plugin import choose
from dsacp.vllm.ascend.roles import FIRST

BASE = "until the adapter stands on DraftMetadataBuilder"
LATER = FIRST + 1
INERT = [-1, BLOCK - 1]
"""How upstream's A2 format writes slot -1."""


def until(what: str) -> Any:
    """Mark a test that turns green when the adapter has the library's answer."""
    return pytest.mark.xfail(strict=True, raises=AssertionError, reason=f"{BASE}: {what}")


def single() -> HostDouble:
    return HostDouble(3, 1, 0, max_num_seqs=64, max_num_batched_tokens=64)


def served(double: HostDouble, batch: Batch) -> list[Any]:
    """Return the request metadata of the drafter's K steps, by our builder."""
    steps = run(double.builder(choose(stock())), double, batch)
    return [step.req_metadata for step in steps]


def eager(lengths: tuple[int, ...], tokens: int | None = None, prefilling: int = 0) -> Batch:
    """Return an eager batch of three requests, the first ``prefilling`` amid their prompts."""
    count = len(lengths)
    marks = tuple(row < prefilling for row in range(count))
    total = sum(lengths) if tokens is None else tokens
    return Batch("verify", lengths, (96, 53, 5)[:count], total, count, marks, (0,) * count)


@until("later steps have one row a request there, so an eager batch fits the persistent bank")
def test_a_batch_of_one_configuration_needs_one_bank() -> None:
    """Kind 1, rows bound in two ways: banks hold max_num_seqs rows and are asked for its tokens.

    Without captures every draft step lands in the second, eager bank, which no memory figure has.
    """
    double = HostDouble(3, 4, 0, max_num_seqs=6, max_num_batched_tokens=64, capture_sizes=())
    builder = double.builder(choose(stock()))
    run(builder, double, eager((4, 4, 4)))
    assert builder.dsacp_banks.eager == {}


@dataclass(frozen=True)
class BadInput:
    """A step that cannot be served.

    Attributes:
        name: of the field that is wrong.
        change: makes it wrong, given the common metadata.
    """

    name: str
    change: Callable[[Any], None]


def _narrow_table(common: Any) -> None:
    common.block_table_tensor = common.block_table_tensor[:, :5]


def _few_slots(common: Any) -> None:
    common.slot_mapping = common.slot_mapping[:2]


def _wide_slots(common: Any) -> None:
    common.slot_mapping = common.slot_mapping.view(-1, 1).expand(-1, 3)


BAD_INPUTS = [
    BadInput("table width", _narrow_table),
    BadInput("few slots", _few_slots),
    BadInput("slots of two dimensions", _wide_slots),
]


@until("inputs are checked before the first launch")
@pytest.mark.parametrize("bad", BAD_INPUTS, ids=lambda bad: bad.name)
def test_bad_inputs_of_a_draft_step_touch_no_buffer(bad: BadInput) -> None:
    """Kind 3: starts, lengths and RoPE rows of a refused step are already written."""
    double = host()
    builder = double.builder(choose(stock()))
    run(builder, double, concurrency())
    bank = builder.dsacp_banks.made[LATER]
    before = [storage.clone() for storage in bank.storages()]
    common = common_metadata(concurrency((500, 600, 700)), double, random.Random(0))
    common.num_reqs, common.num_actual_tokens, common.max_query_len = 16, 3, 1
    bad.change(common)
    refusal = _refusal(lambda: builder.build_for_drafting(common, 1, block_size=BLOCK))
    assert isinstance(refusal, DsacpError), repr(refusal)
    assert all(torch.equal(*pair) for pair in zip(before, bank.storages(), strict=True))


def _refusal(call: Callable[[], Any]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None


def test_padded_tokens_hold_in_every_step() -> None:
    """Kind 6, which is not here: a count that was padded for other ranks was dropped after step 0.

    Upstream repeats its count in every later step, and every step here has that many tokens.
    """
    steps = served(host(), eager((4, 4, 4), tokens=16))
    assert [step.input_positions.numel() for step in steps] == [16] * 3
    assert [step.cp_metadata.num_tokens_pad for step in steps] == [16] * 3


@until("padded rows of a table that is too short are its own")
def test_every_field_of_a_first_pass_has_its_rows() -> None:
    """Kind 7: upstream may pad lengths and not the table, whose view is then three rows of four."""
    double = host()
    builder = double.builder(choose(stock()))
    common = common_metadata(concurrency(), double, random.Random(0))
    common.block_table_tensor = common.block_table_tensor[:3]
    step = builder.build(0, common, None, common_ratio_to_sas_metadata={}, block_size=BLOCK)
    request = step.req_metadata
    assert request.seq_lens.numel() == request.block_table.shape[0] == 4


@until("padding='dummy' gives the padded tokens to a row of their own")
def test_starts_end_at_the_padded_tokens() -> None:
    """Kind 8: an eager later step has three rows that end at token 3, and twelve tokens."""
    for step in served(single(), eager((4, 4, 4))):
        assert step.query_start_loc[-1] == step.input_positions.numel()


@until("rows without query tokens are inert in steps >= 1")
def test_a_request_without_query_tokens_is_silent() -> None:
    """Kind 9: upstream and ours draft it at the position of the request before it.

    A deliberate difference once it is green: upstream drafts such rows.
    """
    for step in served(single(), eager((4, 0, 4)))[1:]:
        assert step.seq_lens[1] == 0
        assert step.slot_mapping[1].tolist() == INERT


@until("`drafts` masks requests whose prompts are unfinished")
def test_a_chunk_of_an_unfinished_prompt_is_silent() -> None:
    """Kind 9: its later steps write the slot of its next real token.

    A deliberate difference once it is green: upstream drafts such rows.
    """
    for step in served(single(), eager((30, 4, 4), prefilling=1))[1:]:
        assert step.seq_lens[0] == 0
        assert step.slot_mapping[0].tolist() == INERT


@until("token counts are clamped, and starts with them")
def test_starts_end_where_tokens_are_announced() -> None:
    """Kind 10: ten tokens are announced, starts end at twelve, two of them without a slot."""
    double = single()
    builder = double.builder(choose(stock()))
    common = common_metadata(eager((4, 4, 4)), double, random.Random(0))
    common.num_actual_tokens = 10
    step = builder.build(0, common, None, common_ratio_to_sas_metadata={}, block_size=BLOCK)
    assert step.req_metadata.query_start_loc.tolist() == [0, 4, 8, 10]


@until("lengths are clamped on the device")
def test_lengths_are_never_negative() -> None:
    """Kind 10: a position of -5, of a count that was wrong, is a length of -4."""
    double = host()
    builder = double.builder(choose(stock()))
    common = common_metadata(concurrency(), double, random.Random(0))
    common.num_reqs, common.num_actual_tokens, common.max_query_len = 16, 3, 1
    common.positions[1] = -5
    step = builder.build_for_drafting(common, 1, block_size=BLOCK)
    assert step.req_metadata.seq_lens.min() == 0


@until("tails of a larger batch are cleaned when the batch shrinks")
@pytest.mark.parametrize("role", [FIRST, LATER])
def test_a_smaller_bucket_leaves_no_live_slot(role: int) -> None:
    """Kind 11: a graph of the larger bucket would write the slots of the batch before."""
    double = HostDouble(3, 4, 0, max_num_seqs=12, max_num_batched_tokens=64, capture_sizes=(8, 48))
    builder = double.builder(choose(stock()))
    for count, tokens in ((12, 48), (2, 8)):
        nothing = (0,) * count
        run(builder, double, Batch("graph", (4,) * count, nothing, tokens, count, nothing, nothing))
    slots = builder.dsacp_banks.made[role].slots[8:, 0]
    assert slots.unique().tolist() == [-1]


def test_a_copy_is_refused() -> None:
    """Kind 12: a copy's launch read the block table and RoPE tables of the original."""
    double = host()
    builder = double.builder(choose(stock()))
    run(builder, double, concurrency())
    with pytest.raises(DsacpError, match="cop"):
        copy.deepcopy(builder)
