"""A prepared call: its integers as one list, checked once and then run again and again."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsacp.core import LayoutError
from dsacp.kernels import DRAFT_FIELDS, prepare_draft_steps
from dsacp.kernels.draft_steps.numbers import StepNumbers

WORD = {"dtype": torch.int32}
COUNTS = st.lists(st.integers(0, 9), max_size=3).map(tuple)


@settings(max_examples=50, deadline=None)
@given(
    sizes=COUNTS,
    rows=COUNTS,
    scalars=st.tuples(*[st.integers(0, 99)] * 5),
    flags=st.tuples(*[st.booleans()] * 3),
)
def test_integers_survive_packing(sizes, rows, scalars, flags) -> None:
    numbers = StepNumbers(sizes, rows, rows, *scalars, *flags)
    assert StepNumbers.unpack(numbers.pack()) == numbers
    assert all(type(word) is int for word in numbers.pack())


def test_a_prepared_call_reads_its_inputs_anew() -> None:
    arena = torch.full((100,), 0x7FFFFFFF, **WORD)
    lens = torch.tensor([5, 9], **WORD)
    options = {
        "query_start_loc": torch.tensor([0, 2, 3], **WORD),
        "seq_lens": lens,
        "num_rejected": torch.zeros(2, **WORD),
        "num_reqs": torch.tensor([2], **WORD),
        "block_tables": [torch.ones(2, 4, **WORD)],
        "cos_tables": [],
        "sin_tables": [],
        "pointers": torch.zeros(3, dtype=torch.int64),
        "arena": arena,
        "layout": torch.arange(len(DRAFT_FIELDS), **WORD).view(1, 1, -1) * 10,
        "rope_bank": torch.zeros(0),
        "rope_layout": torch.zeros(0, 1, 2, **WORD),
        "block_sizes": [4],
        "row_counts": [2],
        "token_counts": [3],
        "first_step": 0,
        "tp_size": 1,
        "tp_rank": 0,
        "pad_query_len": 2,
        "max_model_len": 64,
        "saturate": False,
        "repeat_padding": False,
        "causal": True,
    }
    with pytest.raises(LayoutError, match="max_model_len"):
        prepare_draft_steps(**options | {"max_model_len": 0})
    run = prepare_draft_steps(**options)
    assert set(arena.tolist()) == {0x7FFFFFFF}
    run()
    assert arena[10:13].tolist() == [5, 9, 0x7FFFFFFF]
    lens += 1
    run()
    assert arena[10:13].tolist() == [6, 10, 0x7FFFFFFF]
