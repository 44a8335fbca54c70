"""Grids, tiles and masks of the launchers that a device bounds; nothing is compiled here."""

import ast
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    pytest.skip("the module triton is not installed", allow_module_level=True)
if not torch.cuda.is_available():
    # Read when a kernel module is imported, hence before any launch of this process.
    os.environ.setdefault("TRITON_INTERPRET", "1")

from attention_cases import batch_of

import dsacp.kernels
from dsacp.core import CapacityError
from dsacp.kernels import (
    compressor_rows,
    covered_rows,
    dspark_indices,
    programs,
    sparse_attention,
)
from dsacp.kernels.draft_steps import triton_plan
from dsacp.kernels.draft_steps.triton_tiles import CUDA_TILES, OTHER_TILES, choose_tiles

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WORD = {"dtype": torch.int32, "device": DEVICE}
SOURCES = sorted(Path(dsacp.kernels.__file__).parent.rglob("triton*.py"))


@pytest.fixture
def seven_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that takes seven programs a launch."""
    monkeypatch.setattr(programs, "max_programs", lambda _device_type: 7)


def test_an_npu_takes_65535_programs() -> None:
    """A prefill of 16,384 tokens and 64 heads asked for 65,536, which Triton on Ascend refuses."""
    assert programs.launch_parts(16_384, 4, "npu") == [(0, 16_383), (16_383, 1)]
    assert programs.launch_parts(16_384, 4, "cuda") == [(0, 16_384)]
    assert programs.launch_parts(5, 0, "npu") == programs.launch_parts(0, 5, "npu") == []
    programs.check_programs("a kernel", 65_535, "npu")
    with pytest.raises(CapacityError, match="a kernel needs 65536 programs .* at most 65535"):
        programs.check_programs("a kernel", 65_536, "npu")


def test_attention_is_cut_into_launches(seven_programs: None) -> None:
    batch = batch_of([(9, 4), (8, 3)], heads=20, dim=16, dtype=torch.float32)
    args = [tensor.to(DEVICE) for tensor in batch.args()]
    found = sparse_attention(*args, **batch.options(), impl="triton")
    expected = sparse_attention(*args, **batch.options(), impl="reference")
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_slot_lists_are_cut_into_launches(seven_programs: None) -> None:
    starts, lens = torch.tensor([0, 8, 17], **WORD), torch.tensor([20, 9], **WORD)
    table = torch.arange(12, **WORD).view(2, 6)
    options = {"window": 5, "num_draft_tokens": 9, "block_size": 4, "num_tokens": 18}
    expected, found = (
        dspark_indices(starts, lens, table, **options, impl=impl)
        for impl in ("reference", "triton")
    )
    assert torch.equal(found, expected)


def test_tails_are_cut_into_launches(seven_programs: None, check_tails) -> None:
    check_tails("triton", DEVICE, configs=2, widths=(600, 600))


def test_a_grid_that_is_not_cut_is_refused(seven_programs: None) -> None:
    out = torch.zeros(225, dtype=torch.bool, device=DEVICE)
    plan, starts = torch.zeros(1024, **WORD), torch.zeros(2, **WORD)
    with pytest.raises(CapacityError, match="covered_rows needs 8 programs"):
        covered_rows(plan, starts, "a2", 64, 4, out=out, impl="triton")


@pytest.mark.parametrize("rows", [1, 300, 65_536])
@pytest.mark.parametrize("tokens", [1, 300_000])
def test_only_cuda_moves_vectors(rows: int, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton-Ascend drops what was added to a pointer that becomes an integer and back."""
    assert not choose_tiles(None, rows, tokens).vector
    assert choose_tiles(0, rows, tokens).vector
    monkeypatch.setattr(triton_plan.triton, "JITFunction", type(triton_plan.draft_steps_kernel))
    triton_plan._check_vector(OTHER_TILES, None)
    triton_plan._check_vector(CUDA_TILES, 0)
    with pytest.raises(AssertionError, match="without vectors away from CUDA"):
        triton_plan._check_vector(CUDA_TILES, None)


@pytest.mark.parametrize("count", [513, pytest.param(4096, marks=pytest.mark.slow)])
def test_any_number_of_requests(count: int) -> None:
    """One tile of 513 requests and more did not fit an NPU's local memory: no launch compiled."""
    from dsacp.kernels.triton_requests import request_tiles

    assert request_tiles(count)["BLOCK_REQS"] <= 256
    query_lens = torch.arange(count, **WORD) % 3
    starts = torch.cat([torch.zeros(1, **WORD), query_lens.cumsum(0).to(torch.int32)])
    lens = torch.where(query_lens > 0, query_lens + torch.arange(count, **WORD) % 90, 0).int()
    table = torch.arange(4 * count, **WORD).view(count, 4)
    tokens = int(starts[-1])
    plan = torch.zeros(1024, **WORD)
    plan[:7] = torch.tensor([1, 0, 0, 0, count - 2, 1, 0])
    rope = torch.rand(128, 6, device=DEVICE)
    calls = {
        "covered": lambda impl: [
            covered_rows(plan, starts, "a5", 64, 4, num_tokens=tokens + 3, impl=impl)
        ],
        "dspark": lambda impl: [
            dspark_indices(starts[-3:] - starts[-3], lens[-2:], table, window=4, block_size=16,
                           num_draft_tokens=3, num_tokens=4, impl=impl)
        ],
        "compressor": lambda impl: vars(
            compressor_rows(starts, (lens - query_lens).clamp(min=0).int(), table, rope, rope,
                            ratio=3, block_size=16, num_rows=count, seq_lens=lens, impl=impl)
        ).values(),
    }  # fmt: skip
    for name, call in calls.items():
        for expected, found in zip(call("reference"), call("triton"), strict=True):
            assert torch.equal(found, expected), name


def test_attention_of_any_number_of_requests() -> None:
    batch = batch_of([(0, 0)] * 256 + [(2, 9), (1, 3)], dim=16, dtype=torch.float32, heads=2)
    args = [tensor.to(DEVICE) for tensor in batch.args()]
    found = sparse_attention(*args, **batch.options(), impl="triton")
    expected = sparse_attention(*args, **batch.options(), impl="reference")
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def equality_masks(tree: ast.AST) -> Iterator[int]:
    """Yield lines of loads and stores whose mask compares for equality, by name or in place."""
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        named: dict[str, list[ast.expr]] = {}
        for node in ast.walk(function):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    named.setdefault(ast.unparse(target), []).append(node.value)
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("tl.load", "tl.store"):
                masks = [keyword.value for keyword in node.keywords if keyword.arg == "mask"]
                if any(_compares_equal(mask, named, set()) for mask in masks):
                    yield node.lineno


def _compares_equal(mask: ast.expr, named: dict[str, list[ast.expr]], seen: set[str]) -> bool:
    """Follow ``&``, ``|``, ``~`` and names; what is selected or loaded by a mask is no mask."""
    if isinstance(mask, ast.Compare):
        return any(isinstance(operator, ast.Eq | ast.NotEq) for operator in mask.ops)
    if isinstance(mask, ast.BinOp):
        return any(_compares_equal(part, named, seen) for part in (mask.left, mask.right))
    if isinstance(mask, ast.UnaryOp):
        return _compares_equal(mask.operand, named, seen)
    if isinstance(mask, ast.Subscript):
        return _compares_equal(mask.value, named, seen)
    if isinstance(mask, ast.Name) and mask.id not in seen:
        values = named.get(mask.id, [])
        return any(_compares_equal(value, named, seen | {mask.id}) for value in values)
    return False


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_no_mask_compares_for_equality(source: Path) -> None:
    """Ascend made an unconditional slice of ``row == 0``: num_reqs was garbage from 256 rows on."""
    assert list(equality_masks(ast.parse(source.read_text()))) == []


def test_equality_masks_are_found() -> None:
    text = """
def kernel(out, row, n):
    first = row == 0
    there = (row < n) & first
    tl.store(out + row, row, mask=row == 0)
    tl.store(out + row, row, mask=there)
    tl.load(out + row, mask=(row < n)[:, None])
    tl.store(out + row, tl.where(first, 1, 0), mask=row < n)
"""
    assert list(equality_masks(ast.parse(text))) == [5, 6]
