"""draft_steps' torch reference against the loop oracle of ``support``."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsacp.core import CapacityError, DsacpError, LayoutError
from dsacp.kernels import DRAFT_FIELDS, draft_steps

POISON = 0x7FFFFFFF


def test_every_convention(draft_scenario, check_draft) -> None:
    check_draft("reference", draft_scenario)


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_random_batches(data: st.DataObject, check_draft) -> None:
    reqs = data.draw(st.integers(0, 6), "reqs")
    per_request = st.lists(st.integers(0, 7), min_size=reqs, max_size=reqs)
    queries = data.draw(per_request, "queries")
    starts = [sum(queries[:index]) for index in range(reqs + 1)]
    history = st.lists(st.integers(0, 120), min_size=reqs, max_size=reqs)
    lens = [a and a + q for a, q in zip(data.draw(history, "history"), queries, strict=True)]
    rejected = data.draw(st.lists(st.integers(-3, 9), min_size=reqs, max_size=reqs), "rejected")
    mask = st.lists(st.integers(-1, 1), min_size=reqs, max_size=reqs)
    drafts = data.draw(st.none() | mask, "drafts")
    later = data.draw(st.integers(reqs, reqs + 9), "later rows")
    steps = data.draw(st.integers(0, 3), "later steps")
    tp = data.draw(st.integers(1, 9), "tp")
    sizes = data.draw(st.lists(st.sampled_from([1, 8, 12, 64]), min_size=1, max_size=3))
    rows = [reqs + data.draw(st.integers(0, 4), "padded rows")] + [later] * steps
    repeats = data.draw(st.none() | st.integers(0, 9), "repeated starts")
    check_draft(
        "reference",
        start_counts=None if repeats is None else [count + repeats for count in rows],
        starts=starts,
        lens=lens,
        rejected=rejected,
        drafts=drafts,
        rows=rows,
        tokens=[max(starts[-1] + data.draw(st.integers(-9, 9), "padded tokens"), 0)]
        + [later] * steps,
        first_step=data.draw(st.sampled_from([0, 0, 1, 3]), "first step"),
        num_banks=7,
        tp=tp,
        rank=data.draw(st.integers(0, tp - 1), "rank"),
        block_sizes=tuple(sizes),
        table_widths=(13,) * len(sizes),
        max_model_len=data.draw(st.integers(1, 130), "max_model_len"),
        saturate=data.draw(st.booleans(), "saturate"),
        repeat=data.draw(st.booleans(), "repeat"),
        causal=data.draw(st.booleans(), "causal"),
    )


def call(**changes: Any) -> dict[str, torch.Tensor]:
    """Run one group without RoPE on batches written as lists; return fields by ``field/step``."""
    rows, tokens = changes.pop("rows"), changes.pop("tokens")
    int32 = {"dtype": torch.int32}
    tables = [torch.tensor(table, **int32) for table in changes.pop("tables", [[[1] * 64] * 8])]
    sizes = [max(row, token + 64) + 1 for row, token in zip(rows, tokens, strict=True)]
    layout = torch.zeros(len(tables), len(rows), len(DRAFT_FIELDS), **int32)
    base = 0
    for group in range(len(tables)):
        for step, size in enumerate(sizes):
            for field in range(len(DRAFT_FIELDS)):
                layout[group, step, field] = base
                base += size
    arena = torch.full((base,), POISON, **int32)
    lens = changes.pop("lens")
    inputs = {
        "query_start_loc": torch.tensor(changes.pop("starts"), **int32),
        "seq_lens": torch.tensor(lens, **int32),
        "num_rejected": torch.tensor(changes.pop("rejected", [0] * len(lens)), **int32),
        "num_reqs": torch.tensor(changes.pop("num_reqs", [len(lens)]), **int32),
    }
    options = {
        "block_tables": tables,
        "block_sizes": [16] * len(tables),
        "cos_tables": [],
        "sin_tables": [],
        "pointers": torch.zeros(3 * len(tables), dtype=torch.int64),
        "arena": arena,
        "layout": layout,
        "rope_bank": torch.zeros(0),
        "rope_layout": torch.zeros(0, len(rows), 2, **int32),
        "row_counts": rows,
        "token_counts": tokens,
        "first_step": 0,
        "tp_size": 1,
        "tp_rank": 0,
        "pad_query_len": 4,
        "max_model_len": 4096,
        "saturate": False,
        "repeat_padding": False,
        "causal": True,
        **inputs,
        **changes,
    }
    draft_steps(**options)
    return {
        f"{field}/{step}" + (f"/{group}" if group else ""): arena[offset:][: sizes[step]]
        for group, steps in enumerate(layout.tolist())
        for step, offsets in enumerate(steps)
        for field, offset in zip(DRAFT_FIELDS, offsets, strict=True)
    }


def test_padded_requests_fill_their_bucket() -> None:
    """vllm-ascend #16168: 3 of 4 requests, 16 one-token rows in the later steps."""
    got = call(
        starts=[0, 4, 8, 12, 0],
        lens=[100, 57, 9, 0],
        num_reqs=[3],
        rows=[4, 16],
        tokens=[16, 16],
        tp_size=4,
    )
    assert got["query_start_loc/0"][:5].tolist() == [0, 4, 8, 12, 16]
    assert got["query_start_loc/1"][:17].tolist() == list(range(17))
    assert got["seq_lens/1"][:16].tolist() == [101, 58, 10] + [0] * 13
    assert got["local_seq_lens/1"][:16].tolist() == [101, 58, 10] + [0] * 13
    assert got["slot_mapping/1"][3:16].tolist() == [-1] * 13
    assert got["seq_lens/1"][16:].unique().tolist() == [POISON]


def test_zero_rows_stay_zero_over_all_steps() -> None:
    """vLLM #43682: padded lengths crept from 0 to 1 and then read block_table[-1]."""
    got = call(starts=[0, 1, 2, 3, 4], lens=[7, 0, 0, 0], rows=[4] * 4, tokens=[4] * 4)
    assert got["seq_lens/3"][:4].tolist() == [10, 0, 0, 0]
    assert got["positions/3"][:4].tolist() == [9, 0, 0, 0]
    assert got["slot_mapping/3"][:4].tolist() == [16 + 9, -1, -1, -1]


def test_every_group_uses_its_own_table() -> None:
    """vllm-ascend #16980: all draft layers used group 0's block table, acceptance 0 %."""
    got = call(starts=[0, 1], lens=[20], rows=[1, 1], tokens=[1, 1], tables=[[[1, 2]], [[9, 8]]])
    assert [int(got["slot_mapping/0"][0]), int(got["slot_mapping/0/1"][0])] == [35, 8 * 16 + 3]
    assert got["seq_lens/1"][0] == got["seq_lens/1/1"][0] == 21


def test_rejected_tokens_shorten_the_later_steps() -> None:
    """vllm-ascend #15529: K=2, one of three tokens accepted, 103 becomes 101 before step 1."""
    got = call(starts=[0, 3], lens=[103], rejected=[2], rows=[1, 1], tokens=[3, 1])
    assert [int(got[f"seq_lens/{step}"][0]) for step in (0, 1)] == [103, 102]
    assert got["positions/1"][0] == 101


@pytest.mark.parametrize("draft_index", [1, 2, 3])
def test_a_row_that_the_host_has_reset_gets_no_slot(draft_index: int) -> None:
    """A host resets position 0 and length 1 at max_model_len, then counts on from there.

    Taken at its word, such a row had a real slot and overwrote the first tokens of its request.
    """
    arena = torch.full((256,), POISON, dtype=torch.int32)
    call(
        starts=[0, 1, 2],
        lens=[draft_index, 40],
        rows=[2],
        tokens=[2],
        first_step=draft_index,
        layout=torch.arange(0, 7 * 4 * 8, 8, dtype=torch.int32).view(1, 4, 7),
        rope_layout=torch.zeros(0, 4, 2, dtype=torch.int32),
        arena=arena,
    )
    offset = 7 * 8 * draft_index
    fields = dict(zip(DRAFT_FIELDS, arena[offset:].split(8), strict=False))
    assert fields["slot_mapping"][:2].tolist() == [-1, 16 + 39 % 16]
    assert fields["positions"][:2].tolist() == [0, 39]
    assert fields["seq_lens"][:2].tolist() == [1, 40]


def test_idle_rank_computes_inert_rows() -> None:
    """vllm-ascend #15347: an idle data-parallel rank keeps the captured shape."""
    got = call(starts=[0, 0], lens=[0], num_reqs=[0], rows=[1, 4], tokens=[4, 4])
    assert got["query_start_loc/0"][:2].tolist() == [0, 4]
    for step in (0, 1):
        assert not got[f"local_seq_lens/{step}"][0]
        assert got[f"slot_mapping/{step}"][:4].tolist() == [-1] * 4


@pytest.mark.parametrize(
    ("changes", "error", "numbers"),
    [
        ({"rows": [4, 3], "tokens": [4, 4]}, LayoutError, "3"),
        ({"rows": [2], "tokens": [-1]}, LayoutError, "-1"),
        ({"rows": [9], "tokens": [9]}, CapacityError, "9"),
        ({"first_step": 1}, CapacityError, "step 2"),
        ({"block_sizes": [0]}, LayoutError, "0"),
        ({"block_sizes": [16, 16]}, LayoutError, "2"),
        ({"tp_rank": 1}, LayoutError, "1 of 1"),
        ({"max_model_len": 0}, LayoutError, "0"),
        ({"pointers": torch.zeros(2, dtype=torch.int64)}, LayoutError, "3"),
        ({"rope_bank": torch.zeros(4, dtype=torch.float64)}, LayoutError, "float64"),
        ({"num_reqs": [2, 2]}, CapacityError, "and 2"),
        ({"query_start_loc": torch.zeros(5, dtype=torch.int64)}, LayoutError, "int64"),
        ({"layout": torch.zeros(1, 2, 6, dtype=torch.int32)}, LayoutError, "7"),
        ({"layout": torch.full((1, 2, 7), 10**6, dtype=torch.int32)}, CapacityError, "1000000"),
    ],
)
def test_bad_input_names_both_numbers_and_touches_nothing(
    changes: dict[str, Any], error: type[DsacpError], numbers: str
) -> None:
    arena = torch.full((4096,), POISON, dtype=torch.int32)
    batch = {"starts": [0, 4, 8, 8, 8], "lens": [5, 6, 0, 0], "rows": [4, 8], "tokens": [8, 8]}
    with pytest.raises(error, match=numbers):
        call(**{**batch, "arena": arena, **changes})
    assert arena.unique().tolist() == [POISON]
