"""Triton kernels of the attention family against their references, in Triton's interpreter."""

import importlib.util
import os

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    pytest.skip("the module triton is not installed", allow_module_level=True)
if not torch.cuda.is_available():
    # Read when a kernel module is imported, hence before any launch of this process.
    os.environ.setdefault("TRITON_INTERPRET", "1")

from attention_cases import batch_of, plan_of

from dsacp.core import LayoutError
from dsacp.kernels import (
    CompressorRows,
    compressor_row_count,
    compressor_rows,
    covered_rows,
    dspark_indices,
    sparse_attention,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
POISON = 0x7FFFFFFF


def moved(tensor):
    return tensor if tensor is None else tensor.to(DEVICE)


def run(batch, impl, **kwargs):
    args = [moved(tensor) for tensor in batch.args()]
    options = {
        name: moved(value) if isinstance(value, torch.Tensor) else value
        for name, value in {**batch.options(), **kwargs}.items()
    }
    return sparse_attention(*args, **options, impl=impl).cpu()


def guarded_like(tensor, fill=777.0):
    store = torch.full((tensor.shape[0] + 4, *tensor.shape[1:]), fill, dtype=tensor.dtype)
    return store.to(DEVICE)


def compare(batch, **kwargs):
    """Run both implementations over equal poison; guards around the kernel's output survive."""
    store = guarded_like(batch.q)
    expected = run(batch, "reference", out=guarded_like(batch.q)[2:-2], **kwargs)
    found = run(batch, "triton", out=store[2:-2], **kwargs)
    tolerance = 1e-5 if batch.q.dtype is torch.float32 else 2e-2
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)
    assert store[:2].eq(777).all()
    assert store[-2:].eq(777).all()
    return found


CASES = {
    "window": ({}, [(1, 1), (2, 9), (0, 4), (3, 2), (2, 0)]),
    "window-right": ({"right": 2}, [(3, 2), (2, 9)]),
    "c4-topk": ({"ratio": 4, "topk": 3}, [(4, 4), (1, 15), (2, 50), (2, 0)]),
    "c128": ({"ratio": 128, "window": 128}, [(1, 127), (2, 129), (1, 260)]),
    "odd-pages": (
        {"ratio": 4, "topk": 3, "block_size": 3, "cmp_block_size": 5},
        [(3, 40), (2, 7)],
    ),
    "many-keys": ({"ratio": 4, "topk": 70, "window": 70}, [(1, 300), (1, 90)]),
}


@pytest.mark.parametrize(("options", "shape"), CASES.values(), ids=CASES)
def test_attention(options, shape):
    compare(batch_of(shape, dim=16, dtype=torch.float32, extra_tokens=2, **options))


@pytest.mark.parametrize(
    ("dtype", "dim", "heads"),
    [(torch.bfloat16, 32, 4), (torch.float16, 16, 20), (torch.bfloat16, 512, 64)],
)
def test_attention_types_and_sizes(dtype, dim, heads):
    compare(batch_of([(2, 9), (1, 30)], ratio=4, topk=3, dtype=dtype, dim=dim, heads=heads))


def test_attention_reads_strided_queries():
    batch = batch_of([(2, 9), (1, 30)], dim=16, dtype=torch.float32)
    wide = torch.randn(3, 9, 16)
    compare(batch.with_(q=wide[:, ::2][:, :4]))


@pytest.mark.parametrize("sink", [float("-inf"), 1e4])
def test_attention_extreme_sinks(sink):
    batch = batch_of([(2, 9), (2, 0)], dim=16, dtype=torch.float32)
    found = compare(batch.with_(sinks=torch.full_like(batch.sinks, sink)))
    assert found.isfinite().all()


def test_attention_listed_slots():
    batch = batch_of([(3, 9), (2, 4), (2, 0)], dim=16, dtype=torch.float32, extra_tokens=1)
    rows = [[5, 4, 7, -1, 6]] * 3 + [[0, 1, 2, 3, 4]] * 2 + [[1] * 5] * 2 + [[-1] * 5]
    indices = torch.tensor(rows, dtype=torch.int32).view(8, 1, 5)
    compare(batch.with_(ori_indices=indices, kv=torch.randn_like(batch.kv)))


@pytest.mark.parametrize(("family", "heads"), [("a2", 4), ("a5", 64), ("a5", 128)])
def test_attention_honours_the_plan(family, heads):
    batch = batch_of([(3, 9), (2, 0), (4, 30)], dim=16, heads=heads, dtype=torch.float32)
    words = plan_of([(0, 2), (2, 1), (3, 0)], family=family, paired=heads == 128)
    words[(2 if heads == 128 else 1) * (9 if family == "a5" else 8)] = 0
    found = compare(batch, sas_metadata=words, num_cores=8, device_family=family)
    assert found[2:6].eq(777).all()
    assert found[6:].ne(777).all()


def test_attention_refuses_what_it_cannot_run():
    with pytest.raises(LayoutError, match="float64"):
        run(batch_of([(1, 3)], dim=16), "triton")
    with pytest.raises(LayoutError, match="power-of-two"):
        run(batch_of([(1, 3)], dim=24, dtype=torch.float32), "triton")


@pytest.mark.parametrize("family", ["a2", "a5"])
@pytest.mark.parametrize("seed", range(6))
def test_covered_rows(family, seed):
    """Random words in the fields, legal or not: both decoders must agree word for word."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(0, 4, (1024,), generator=generator, dtype=torch.int32)
    counts = torch.randint(0, 5, (5,), generator=generator)
    qsl = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]).int().to(DEVICE)
    heads = 128 if seed % 2 else 64
    store = torch.ones(50, dtype=torch.bool, device=DEVICE)
    expected = covered_rows(
        words.to(DEVICE), qsl, family, heads, 8, 1 + seed % 4, num_tokens=40, impl="reference"
    )
    covered_rows(
        words.to(DEVICE), qsl, family, heads, 8, 1 + seed % 4, out=store[5:-5], impl="triton"
    )
    assert torch.equal(store[5:-5], expected)
    assert store[:5].all()
    assert store[-5:].all()


def rows_outputs(num_rows, rotary, flat):
    """Poisoned storages of the five outputs, and the views between their margins."""
    widths = [() if flat else (2,), (), ()]
    stores = [torch.full((num_rows + 4, *w), POISON, dtype=torch.int32) for w in widths]
    stores += [torch.full((num_rows + 4, rotary), float("nan")) for _ in range(2)]
    stores = [store.to(DEVICE) for store in stores]
    return stores, CompressorRows(*(store[2:-2] for store in stores))


@pytest.mark.parametrize("seed", range(6))
def test_compressor_rows(seed):
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(0, 40, (6,), generator=generator)
    qsl = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]).int().to(DEVICE)
    start = torch.randint(-2, 40, (6,), generator=generator).int().to(DEVICE)
    lens = torch.randint(0, 2, (6,), generator=generator).int().to(DEVICE)
    table = torch.randint(-1, 60, (7, 9), generator=generator).int().to(DEVICE)
    table[0, 1] = POISON
    cos = torch.randn(60, 6, generator=generator).to(DEVICE)
    ratio, size, flat = (4, 3)[seed % 2], (2, 3)[seed // 2 % 2], seed % 3 > 0
    rows = compressor_row_count(int(qsl[-1]), 6, ratio)
    options = {"ratio": ratio, "block_size": size, "seq_lens": None if seed % 2 else lens}
    _, expected = rows_outputs(rows, 6, flat)
    stores, found = rows_outputs(rows, 6, flat)
    compressor_rows(qsl, start, table, cos, -cos, out=expected, impl="reference", **options)
    compressor_rows(qsl, start, table, cos, -cos, out=found, impl="triton", **options)
    for name in ("slot_mapping", "positions", "requests", "cos", "sin"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    for store in stores:
        margin = store[[0, 1, -2, -1]]
        assert margin.isnan().all() if margin.is_floating_point() else margin.eq(POISON).all()


@pytest.mark.parametrize("block_size", [4, 5])
def test_dspark_indices(block_size):
    qsl = torch.tensor([0, 4, 4, 8, 12], dtype=torch.int32, device=DEVICE)
    lens = torch.tensor([30, 9, 6, 0], dtype=torch.int32, device=DEVICE)
    table = torch.randint(-1, 50, (5, 5), dtype=torch.int32, device=DEVICE)
    options = {"window": 9, "num_draft_tokens": 4, "block_size": block_size}
    store = torch.full((17, 1, 130), POISON, dtype=torch.int32, device=DEVICE)
    expected = torch.empty(13, 1, 130, dtype=torch.int32, device=DEVICE)
    dspark_indices(qsl, lens, table, out=expected, impl="reference", **options)
    dspark_indices(qsl, lens, table, out=store[2:-2], impl="triton", **options)
    assert torch.equal(store[2:-2], expected)
    assert store[[0, 1, -2, -1]].eq(POISON).all()
