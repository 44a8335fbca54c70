"""clear_tails and stage_inputs: exactly the promised words change."""

import pytest
import torch

from dsacp.core import CapacityError, LayoutError
from dsacp.kernels import DRAFT_FIELDS, clear_tails, field_length, stage_inputs

POISON = 0x7FFFFFFF
WORD = {"dtype": torch.int32}


def test_a_shrunken_batch_leaves_inert_tails(check_tails) -> None:
    """SGLang #10892, TokenSpeed #955: stale positions and page ids past a smaller batch."""
    check_tails("reference")


@pytest.mark.parametrize("first_step", [0, 2])
def test_steps_have_their_own_ranges(check_tails, first_step: int) -> None:
    check_tails(
        "reference",
        first_step=first_step,
        rows=[(2, 5), (0, 8)],
        tokens=[(8, 20), (3, 3)],
        lasts=[(8, 3), (0, 0)],
    )


def test_nothing_to_clean_changes_nothing(check_tails) -> None:
    check_tails("reference", rows=[(4, 4)], tokens=[(7, 7)], lasts=[(4, 2)])


def test_several_groups_and_absent_fields(check_tails) -> None:
    check_tails("reference", groups=3, configs=2, absent={(1, 1), (2, 6), (0, 0)})


def test_tables_are_cleaned_in_their_own_widths(check_tails) -> None:
    """Every table was cleaned in the first one's width: past a narrower one's rows, or too few."""
    check_tails("reference", configs=4, widths=[8, 4, 8, 8])
    check_tails("reference", configs=2, widths=[4, 8])


@pytest.mark.parametrize("widths", [[], [4], [4, 0], [4, 4, 4]])
def test_every_table_has_one_width(widths: list[int]) -> None:
    arena, bank = torch.full((80,), POISON, **WORD), torch.full((80,), 7.5)
    layout = torch.zeros(1, 1, len(DRAFT_FIELDS), **WORD)
    rope = torch.zeros(2, 1, 2, **WORD)
    with pytest.raises(LayoutError, match="width >= 1 for each of 2 tables"):
        clear_tails(arena, layout, bank, rope, widths, 0, [0], [1], [0], [1], [0], [0])
    assert arena.unique().tolist() == [POISON]
    assert bank.unique().tolist() == [7.5]


@pytest.mark.parametrize(("rows", "tokens"), [(80, 1), (1, 81), (1, 21)])
def test_a_device_refuses_ranges_longer_than_the_storage(
    rows: int, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layout on a device is never read, so that nothing at all was checked there."""
    monkeypatch.setattr("dsacp.kernels.bounds._is_readable", lambda _: False)
    arena, bank = torch.full((80,), POISON, **WORD), torch.full((80,), 7.5)
    layout = torch.zeros(1, 1, len(DRAFT_FIELDS), **WORD)
    rope = torch.zeros(1, 1, 2, **WORD)
    with pytest.raises(CapacityError, match="storage of 80 words, found one of 8[14] words"):
        clear_tails(arena, layout, bank, rope, [4], 0, [0], [rows], [0], [tokens], [0], [0])
    assert arena.unique().tolist() == [POISON]
    assert bank.unique().tolist() == [7.5]


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        (([3], [2]), LayoutError),
        (([0, 0, 0], [1, 1, 1]), CapacityError),
        (([0], [99]), CapacityError),
    ],
)
def test_bad_ranges_touch_nothing(
    rows: tuple[list[int], list[int]], error: type[Exception]
) -> None:
    arena = torch.full((40,), POISON, **WORD)
    layout = torch.zeros(1, 2, len(DRAFT_FIELDS), **WORD)
    steps = [0] * len(rows[0])
    with pytest.raises(error, match=r"found|needs"):
        clear_tails(
            arena,
            layout,
            torch.zeros(0),
            torch.zeros(0, 2, 2, **WORD),
            [],
            0,
            *rows,
            steps,
            steps,
            steps,
            steps,
        )
    assert arena.unique().tolist() == [POISON]


def test_field_lengths() -> None:
    lengths = {field: field_length(field, 5, 12) for field in DRAFT_FIELDS}
    assert lengths["query_start_loc"] == lengths["local_query_start_loc"] == 6
    assert lengths["positions"] == lengths["slot_mapping"] == 12
    assert {lengths[f] for f in ("seq_lens", "local_seq_lens", "start_pos")} == {5}


@pytest.mark.parametrize("with_rejected", [True, False])
@pytest.mark.parametrize(("reqs", "rows"), [(3, 3), (3, 7), (0, 4), (1, 1), (0, 0)])
def test_staging_block(check_staging, reqs: int, rows: int, with_rejected: bool) -> None:
    check_staging("reference", reqs, rows, with_rejected)


@pytest.mark.parametrize("drafts", ["all", "some"])
@pytest.mark.parametrize(("reqs", "rows"), [(3, 7), (0, 4), (1, 1)])
def test_staging_block_with_a_mask(check_staging, reqs: int, rows: int, drafts: str) -> None:
    check_staging("reference", reqs, rows, True, drafts=drafts)


def test_staged_starts_stay_inside_the_announced_tokens(check_staging) -> None:
    """A batch of 10 announced tokens whose starts ended at 12 got 12 live slots."""
    check_staging("reference", 4, 5, True, num_tokens=10)


def test_staging_refuses_more_requests_than_it_holds() -> None:
    """vllm-ascend #16168's kind: 5 requests in a block of 4 must not spill over."""
    out = torch.full((40,), POISON, **WORD)
    with pytest.raises(CapacityError, match="5 of 4"):
        stage_inputs(torch.arange(6, **WORD), torch.ones(5, **WORD), None, 5, out, 4)
    with pytest.raises(CapacityError, match="14 words, the block holds 13"):
        stage_inputs(torch.arange(6, **WORD), torch.ones(5, **WORD), None, 3, out[:13], 4)
    with pytest.raises(LayoutError, match="inputs of 4 requests, found 2"):
        stage_inputs(torch.arange(6, **WORD), torch.ones(2, **WORD), None, 4, out, 4)
    assert out.unique().tolist() == [POISON]
