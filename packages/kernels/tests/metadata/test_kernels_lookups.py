"""slot_mapping and rope_gather: look-ups that never read or write past their tensors."""

import pytest
import torch

from dsacp.core import LayoutError
from dsacp.kernels import rope_gather, slot_mapping

WORD = {"dtype": torch.int32}


@pytest.mark.parametrize("fmt", ["flat", "block_offset"])
@pytest.mark.parametrize("block_size", [1, 16, 24, 128])
def test_slots(check_slots, block_size: int, fmt: str) -> None:
    check_slots("reference", block_size, fmt)


def test_no_slot_in_pairs_is_the_last_offset_of_block_minus_one() -> None:
    """Upstream U11: an invalid pair is (-1, block_size - 1)."""
    out = torch.empty(2, 2, **WORD)
    table = torch.tensor([[5, 6]], **WORD)
    slot_mapping(
        torch.tensor([17, 17], **WORD),
        torch.tensor([0, -1], **WORD),
        table,
        16,
        out,
        "block_offset",
    )
    assert out.tolist() == [[6, 1], [-1, 15]]


@pytest.mark.parametrize("count", [0, 1, 13])
def test_rope_rows(check_rope, count: int) -> None:
    check_rope("reference", count)


def test_position_past_the_table_reads_its_last_row() -> None:
    """vLLM #57941: position 8192 with a table of 8192 rows was an illegal access."""
    table = torch.arange(8.0).view(4, 2)
    cos, sin = torch.empty(2, 2), torch.empty(2, 2)
    rope_gather(torch.tensor([4, -1], **WORD), table, table + 1, cos, sin)
    assert cos.tolist() == [[6, 7], [0, 1]]
    assert sin.tolist() == [[7, 8], [1, 2]]


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"positions": torch.zeros(3, dtype=torch.int64)}, "int64"),
        ({"token_to_req": torch.zeros(2, **WORD)}, r"\(2,\)"),
        ({"block_table": torch.zeros(0, 4, **WORD)}, r"\(0, 4\)"),
        ({"block_table": torch.zeros(4, 4, **WORD).T}, "stride"),
        ({"block_size": 0}, "0"),
        ({"fmt": "pairs"}, "pairs"),
        ({"fmt": "block_offset"}, r"\(3, 2\)"),
        ({"out": torch.zeros(3, dtype=torch.int64)}, "int64"),
    ],
)
def test_bad_slot_input_is_named(changes: dict[str, object], found: str) -> None:
    table = torch.zeros(4, 4, **WORD)
    inputs = {"positions": torch.zeros(3, **WORD), "token_to_req": torch.zeros(3, **WORD)}
    inputs |= {"block_table": table, "block_size": 16, "out": torch.zeros(3, **WORD)}
    with pytest.raises(LayoutError, match=found):
        slot_mapping(**{**inputs, **changes})


@pytest.mark.parametrize("bad", ["cos", "sin", "out"])
def test_bad_rope_input_is_named(bad: str) -> None:
    table, out = torch.zeros(4, 2), torch.zeros(3, 2)
    wrong = torch.zeros(4, 2, dtype=torch.float64)
    with pytest.raises(LayoutError, match=r"torch.float64|\(4, 2\)"):
        rope_gather(
            torch.zeros(3, **WORD),
            wrong if bad == "cos" else table,
            wrong if bad == "sin" else table,
            out,
            torch.zeros(4, 2) if bad == "out" else out,
        )
