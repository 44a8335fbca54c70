"""Slots of a DSpark block against loops, and attention over them (upstream U36)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsacp.core import LayoutError, TokenShard
from dsacp.kernels import dspark_index_width, dspark_indices, local_metadata, sparse_attention


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


def naive(qsl, seq_lens, table, window, block_size, num_tokens, width):
    rows = []
    for b, length in enumerate(seq_lens):
        count = qsl[b + 1] - qsl[b]
        start = max(length - count - window, 0)
        row = []
        for position in range(start, length)[:width]:
            column = position // block_size
            page = table[b][column] if column < len(table[b]) else -1
            row.append(page * block_size + position % block_size if page >= 0 else -1)
        rows += [row + [-1] * (width - len(row))] * count
    rows += [[-1] * width] * (num_tokens - len(rows))
    return rows


def test_width_is_rounded_up():
    assert dspark_index_width(128, 4) == 256
    assert dspark_index_width(124, 4) == 128


@given(
    requests=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 40)), min_size=1, max_size=5),
    window=st.integers(1, 12),
    block_size=st.sampled_from([1, 4, 5]),
    padding=st.integers(0, 3),
    seed=st.integers(0, 50),
)
@settings(max_examples=60, deadline=None)
def test_random_batches(requests, window, block_size, padding, seed):
    qsl = [0]
    for count, _ in requests:
        qsl.append(qsl[-1] + count)
    seq_lens = [0 if seed % 4 == 0 else count + prefix for count, prefix in requests]
    generator = torch.Generator().manual_seed(seed)
    table = torch.randint(-1, 90, (len(requests) + 1, 9), generator=generator).int()
    total = qsl[-1] + padding
    store = torch.full((total + 2, 1, window + 7), 0x7FFFFFFF, dtype=torch.int32)
    out = store[1:-1]
    found = dspark_indices(
        int32(qsl),
        int32(seq_lens),
        table,
        window=window,
        num_draft_tokens=4,
        block_size=block_size,
        out=out,
    )
    assert found is out
    expected = naive(qsl, seq_lens, table.tolist(), window, block_size, total, window + 7)
    assert out[:, 0].tolist() == expected
    assert store[[0, -1]].eq(0x7FFFFFFF).all()


def test_allocates_the_aligned_width():
    out = dspark_indices(
        int32([0, 2]),
        int32([5]),
        int32([[3, 1]]),
        window=3,
        num_draft_tokens=2,
        block_size=4,
        num_tokens=3,
    )
    assert out.shape == (3, 1, 128)
    assert out[:, 0, :6].tolist() == [[12, 13, 14, 15, 4, -1]] * 2 + [[-1] * 6]


def test_sharded_block_equals_unsharded():
    """The indices are global and sliced; non-causal local lengths keep the whole request."""
    qsl, lens, table = int32([0, 4, 8, 12]), int32([30, 6, 0]), torch.randperm(24).int().view(3, 8)
    indices = dspark_indices(
        qsl, lens, table, window=8, num_draft_tokens=4, block_size=4, num_tokens=15
    )
    torch.manual_seed(1)
    q = torch.randn(15, 4, 8, dtype=torch.float64)
    kv, sinks = torch.randn(24, 4, 1, 8, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    options = {"scale": 0.3, "window_left": 11}
    whole = sparse_attention(q, kv, table, qsl, lens, sinks, ori_indices=indices, **options)
    for rank in range(3):
        shard = TokenShard(15, 3, rank)
        local = local_metadata(qsl, lens, shard, causal=False)
        part = slice(shard.start, shard.end)
        out = sparse_attention(
            q[part],
            kv,
            table,
            local.query_start_loc,
            local.seq_lens,
            sinks,
            ori_indices=indices[part],
            **options,
        )
        torch.testing.assert_close(out, whole[part], rtol=0, atol=1e-10, equal_nan=True)
    assert whole[8:12].eq(0).all()
    assert whole[12:].isnan().all()


BAD = {
    "width": ({"index_width": 6}, "7..2048"),
    "tokens": ({"num_tokens": None}, "padded tokens"),
    "starts": ({"query_start_loc": int32([0])}, "same batch"),
    "table": ({"block_table": int32([[1]]).long()}, "int32"),
    "block": ({"block_size": 0}, "block_size"),
    "out": ({"out": torch.zeros(3, 1, 128)}, "contiguous int32"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD)
def test_contradictions_are_refused(change, message):
    arguments = {
        "query_start_loc": int32([0, 2]),
        "seq_lens": int32([5]),
        "block_table": int32([[3, 1]]),
        "window": 3,
        "num_draft_tokens": 4,
        "block_size": 4,
        "num_tokens": 3,
    }
    with pytest.raises(LayoutError, match=message):
        dspark_indices(**{**arguments, **change})
