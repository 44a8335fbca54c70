"""What ends past its storage is refused before a word is written, by both implementations.

Without Triton only the references run.
"""

import importlib.util
import os

import pytest
import torch

if importlib.util.find_spec("triton") is not None and not torch.cuda.is_available():
    # Read when a kernel module is imported, hence before any launch of this process.
    os.environ.setdefault("TRITON_INTERPRET", "1")

from draft_scenarios import BASE

from dsacp.core import CapacityError, LayoutError
from dsacp.kernels import (
    DRAFT_FIELDS,
    clear_tails,
)

HAS_TRITON = importlib.util.find_spec("triton") is not None
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WORD = {"dtype": torch.int32, "device": DEVICE}
POISON = 0x7FFFFFFF

both = pytest.mark.parametrize("impl", ["reference", "triton"] if HAS_TRITON else ["reference"])
cpu_only = pytest.mark.skipif(DEVICE != "cpu", reason="on a device nobody reads the layout")


def storages(arena: int, bank: int):
    """One group and one RoPE table, every field at 3 and all RoPE rows at 0."""
    return (
        torch.full((arena,), POISON, **WORD),
        torch.full((1, 1, len(DRAFT_FIELDS)), 3, **WORD),
        torch.full((bank,), float("nan"), device=DEVICE),
        torch.zeros(1, 1, 2, **WORD),
    )


@cpu_only
@both
@pytest.mark.parametrize(
    ("arena", "bank", "wrong"), [(19, 64, r"\[3, 21\)"), (21, 63, r"\[0, 64\)"), (21, 64, None)]
)
def test_tails_stay_in_their_storages(impl: str, arena: int, bank: int, wrong: str | None) -> None:
    """A field at 10 of 20 words was cleaned up to word 28."""
    made = storages(arena, bank)
    call = (*made, [4], 0, [2], [17], [2], [16], [2], [2], impl)
    if wrong is None:
        clear_tails(*call)
        assert made[0][20] != POISON
        return
    with pytest.raises(CapacityError, match=wrong):
        clear_tails(*call)
    assert made[0].unique().tolist() == [POISON]
    assert made[2].isnan().all()


@cpu_only
@both
@pytest.mark.parametrize("name", ["arena", "rope_bank"])
def test_draft_steps_stay_in_their_storages(impl: str, name: str, check_draft, monkeypatch) -> None:
    """Fields at 0, 30 .. 180 of an arena of 100 words: Triton wrote words 100 to 184."""
    import draft_oracle

    kept = {}

    def short(*args):
        at = {"arena": 8, "rope_bank": 10}[name]
        changed = list(args)
        kept["whole"] = changed[at]
        changed[at] = changed[at][: changed[at].numel() // 2]
        draft_oracle_steps(*changed)

    draft_oracle_steps = draft_oracle.draft_steps
    monkeypatch.setattr(draft_oracle, "draft_steps", short)
    with pytest.raises(CapacityError, match="words, found words"):
        check_draft(impl, BASE, DEVICE)
    whole = kept["whole"]
    assert whole.isnan().all() if whole.is_floating_point() else whole.eq(POISON).all()


@pytest.mark.parametrize(
    ("index", "change", "message"),
    [
        (1, lambda t: t.long(), "layout as contiguous int32 .groups, steps, 7., found torch.int64"),
        (1, lambda t: t[..., :6], "layout as contiguous"),
        (3, lambda t: t[0], "rope_layout as contiguous"),
        (2, lambda t: t.double(), "rope_bank as contiguous 1-D fp32, found torch.float64"),
        (2, lambda t: t.view(8, 8), "rope_bank as contiguous 1-D fp32"),
        (2, lambda t: t.to("meta"), "every tensor on"),
        (1, lambda t: t.to("meta"), "every tensor on"),
    ],
)
def test_tails_check_their_banks(index: int, change, message: str) -> None:
    """Triton took whatever it got for int32 words and fp32 rows of one device."""
    made = list(storages(64, 64))
    made[index] = change(made[index])
    with pytest.raises(LayoutError, match=message):
        clear_tails(*made, [4], 0, [2], [4], [2], [4], [2], [2])
