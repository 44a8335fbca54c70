"""Sparse attention's reference against an oracle of Python loops (upstream U17, U18)."""

import pytest
import torch
from attention_cases import batch_of, naive
from hypothesis import given, settings
from hypothesis import strategies as st

from dsacp.core import LayoutError, TokenShard
from dsacp.kernels import local_metadata, sparse_attention

MODES = {"window": (1, 0), "c4": (4, 3), "c128": (128, 0), "dense-c4": (4, 0)}
relaxed = settings(max_examples=30, deadline=None)
requests = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40)), min_size=1, max_size=5)


def run(batch, **kwargs):
    return sparse_attention(*batch.args(), **batch.options(), **kwargs)


def same(found, expected, tolerance=1e-12):
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=tolerance, equal_nan=True)


EDGE_CASES = {
    "one-token": ([(1, 1)], 1, 0),
    "first-chunk-c4": ([(4, 4), (2, 9)], 4, 3),
    "window-exact": ([(1, 6), (1, 7)], 1, 0),
    "c128-below-and-at": ([(1, 127), (1, 128)], 128, 0),
    "topk-all-used": ([(1, 4 * 3 + 3), (1, 2)], 4, 3),
    "topk-selects": ([(1, 4 * 3 + 4), (2, 50)], 4, 3),
    "negative-position": ([(3, 2), (1, 5)], 4, 3),
    "padding": ([(5, 0), (2, 11), (4, 0)], 4, 3),
    "no-query": ([(0, 9), (2, 8), (0, 0), (1, 3)], 4, 3),
    "block-edges": ([(3, 8), (3, 9), (2, 16), (1, 17)], 4, 3),
    "window-of-128": ([(1, 128), (1, 129), (2, 257)], 128, 0),
}


@pytest.mark.parametrize(("shape", "ratio", "topk"), EDGE_CASES.values(), ids=EDGE_CASES)
def test_edge_cases(shape, ratio, topk):
    window = 128 if ratio == 128 else 6
    batch = batch_of(shape, ratio=ratio, topk=topk, window=window, extra_tokens=2)
    same(run(batch), naive(batch))


def test_edge_values_by_hand():
    """One key and a sink: out = key0 * e^s / (e^s + e^sink)."""
    batch = batch_of([(1, 1)], heads=2)
    key = batch.kv[int(batch.block_table[0, 0]), 0, 0]
    logit = (batch.q[0] @ key) * batch.scale
    share = torch.sigmoid(logit - batch.sinks)
    same(run(batch)[0], share[:, None] * key)


def test_rows_before_the_cache_are_zero():
    out = run(batch_of([(3, 2), (5, 0)], ratio=4, topk=2))
    assert out[0].eq(0).all()
    assert out[3:].eq(0).all()
    assert out[1:3].ne(0).all()


@pytest.mark.parametrize("sink", [float("-inf"), 1e4])
def test_extreme_sinks(sink):
    batch = batch_of([(2, 9), (3, 0), (1, 30)], ratio=4, topk=3)
    batch = batch.with_(sinks=torch.full_like(batch.sinks, sink))
    out = run(batch)
    if sink > 0:
        assert out.eq(0).all()
    else:
        # The loops cannot form exp(-inf + inf) for rows without keys; those are zero.
        same(out, naive(batch.with_(sinks=torch.full_like(batch.sinks, -1e300))))


@pytest.mark.parametrize("mode", MODES)
@given(shape=requests, seed=st.integers(0, 99), right=st.sampled_from([0, 0, 2]))
@relaxed
def test_random_batches(mode, shape, seed, right):
    ratio, topk = MODES[mode]
    if mode == "c128":
        shape = [(count, length * 9) for count, length in shape]
    batch = batch_of(
        shape,
        ratio=ratio,
        topk=topk,
        seed=seed,
        right=right,
        window=2 + seed % 7,
        block_size=1 + seed % 5,
        cmp_block_size=1 + seed % 3,
        extra_tokens=seed % 3,
    )
    same(run(batch), naive(batch))


@pytest.mark.parametrize("mode", MODES)
@given(shape=requests, seed=st.integers(0, 99), tp=st.integers(1, 5))
@relaxed
def test_sharded_equals_unsharded(mode, shape, seed, tp):
    ratio, topk = MODES[mode]
    batch = batch_of(shape, ratio=ratio, topk=topk, seed=seed)
    whole = run(batch)
    tokens = batch.q.shape[0]
    for rank in range(tp):
        shard = TokenShard(tokens, tp, rank)
        local = local_metadata(batch.query_start_loc, batch.seq_lens, shard)
        pad = shard.padded - tokens
        q = torch.cat([batch.q, torch.full_like(batch.q[:1], torch.nan).expand(pad, -1, -1)])
        part = batch.with_(
            q=q[shard.start : shard.end],
            query_start_loc=local.query_start_loc,
            seq_lens=local.seq_lens,
        )
        if batch.cmp_indices is not None:
            tail = torch.full((pad, 1, topk), -1, dtype=torch.int32)
            part = part.with_(
                cmp_indices=torch.cat([batch.cmp_indices, tail])[shard.start : shard.end]
            )
        out = run(part)
        same(out[: shard.real], whole[shard.start : shard.start + shard.real], 1e-10)
        assert out[shard.real :].isnan().all()


def test_listed_slots_replace_the_window():
    batch = batch_of([(3, 9), (2, 4), (2, 0)], extra_tokens=1)
    rows = [[5, 4, 7, -1, 6]] * 3 + [[0, 1, 2, 3, 4]] * 2 + [[1, 1, 1, 1, 1]] * 2 + [[-1] * 5]
    indices = torch.tensor(rows, dtype=torch.int32).view(8, 1, 5)
    batch = batch.with_(ori_indices=indices, kv=torch.randn_like(batch.kv))
    out = run(batch)
    same(out, naive(batch))
    assert out[5:7].eq(0).all()


def test_long_prefill_runs_in_chunks(monkeypatch):
    from dsacp.kernels.sparse_attention import reference

    batch = batch_of([(37, 40), (29, 29)], ratio=4, topk=3)
    expected = run(batch)
    monkeypatch.setattr(reference, "GATHER_ELEMENTS", 200)
    same(run(batch), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_narrow_dtypes(dtype):
    batch = batch_of([(3, 20), (2, 5)], ratio=4, topk=3, dtype=dtype)
    out = run(batch)
    assert out.dtype is dtype
    same(out, naive(batch), 1e-6 if dtype is torch.float32 else 2e-2)


def test_out_is_written_in_place_between_guards():
    batch = batch_of([(2, 9), (1, 3)], extra_tokens=2)
    store = torch.full((9, *batch.q.shape[1:]), 777.0, dtype=torch.float64)
    out = store[2:7]
    assert run(batch, out=out) is out
    same(out[:3], naive(batch)[:3])
    assert store[:2].eq(777).all()
    assert store[5:].eq(777).all()


def test_absent_pages_are_absent_keys():
    """vLLM #43682: a table row of -1 pages must not reach another request's keys."""
    batch = batch_of([(1, 4), (1, 4)], block_size=4)
    batch.block_table[1] = -1
    batch.kv.copy_(torch.randn_like(batch.kv))
    out = run(batch)
    assert out[1].eq(0).all()
    assert out[0].ne(0).all()


BAD = {
    "sinks": (lambda b: b.with_(sinks=b.sinks[:1]), "sinks"),
    "lengths": (lambda b: b.with_(seq_lens=b.seq_lens[:1]), "query_start_loc"),
    "int64-lengths": (lambda b: b.with_(seq_lens=b.seq_lens.long()), "int32"),
    "kv-dtype": (lambda b: b.with_(kv=b.kv.float()), "dtype"),
    "kv-shape": (lambda b: b.with_(kv=b.kv[:, :, 0]), "one head"),
    "kv-stride": (lambda b: b.with_(kv=b.kv[:, ::2]), "contiguous blocks"),
    "table-rows": (lambda b: b.with_(block_table=b.block_table[:1]), "padded batch"),
    "table-dtype": (lambda b: b.with_(block_table=b.block_table.long()), "int32"),
    "window": (lambda b: b.with_(window_left=-1), "window"),
    "half-cmp": (lambda b: b.with_(cmp_block_table=None, cmp_indices=None), "together"),
    "indices-alone": (lambda b: b.with_(cmp_kv=None, cmp_block_table=None), "cmp_indices"),
    "ratio": (lambda b: b.with_(cmp_ratio=1), "cmp_ratio"),
    "indices-rows": (lambda b: b.with_(cmp_indices=b.cmp_indices[:1]), "pad it"),
    "both": (lambda b: b.with_(ori_indices=b.cmp_indices), "window-only"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD)
def test_contradictions_never_touch_the_output(change, message):
    batch = change(batch_of([(2, 9), (1, 3)], ratio=4, topk=3))
    out = torch.full(batch.q.shape, 777.0, dtype=torch.float64)
    with pytest.raises(LayoutError, match=message):
        run(batch, out=out)
    assert out.eq(777).all()


def test_output_of_another_shape_is_refused():
    batch = batch_of([(2, 9)])
    with pytest.raises(LayoutError, match="expected out like q"):
        run(batch, out=torch.empty(3, 4, 8, dtype=torch.float64))


def test_op_schema_is_honest():
    """Tapes and guards trust mutates_args: nothing but ``out`` may change."""
    batch = batch_of([(2, 9), (1, 0)], ratio=4, topk=3)
    out = torch.empty_like(batch.q)
    names = (batch.cmp_kv, batch.cmp_block_table, batch.cmp_indices, None, None)
    torch.library.opcheck(
        torch.ops.dsacp.sparse_attention.default,
        (*batch.args(), out, *names, 0.5, 5, 0, 4, 0, 0, False, False, "reference"),
        test_utils=("test_schema",),
    )
