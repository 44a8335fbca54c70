"""Rows of the KV compressor against loops over requests and groups (upstream U15)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsacp.core import LayoutError
from dsacp.kernels import CompressorRows, compressor_row_count, compressor_rows

ROTARY = 4


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


def tables(rows):
    cos = torch.arange(rows * ROTARY, dtype=torch.float32).view(rows, ROTARY) + 10
    return cos, -cos


def naive(qsl, start_pos, table, cos, sin, ratio, block_size, num_rows, flat, seq_lens=None):
    """Append one row a completed group, then the invalid fill."""
    slots, positions, requests, cosines, sines = [], [], [], [], []
    for b, start in enumerate(start_pos):
        length = qsl[b + 1] - qsl[b]
        if start < 0 or length <= 0 or (seq_lens is not None and seq_lens[b] == 0):
            continue
        for group in range(start // ratio, (start + length) // ratio):
            column, offset, position = group // block_size, group % block_size, group * ratio
            page = table[b][column] if column < len(table[b]) else -1
            valid = page >= 0 and page * block_size + offset < 2**31 and position < len(cos)
            good, bad = (page, offset), (-1, block_size - 1)
            pair = good if valid else bad
            slots.append((page * block_size + offset if valid else -1) if flat else pair)
            positions.append(position if valid else -1)
            requests.append(b if valid else -1)
            cosines.append(cos[position].tolist() if valid else [1.0] * ROTARY)
            sines.append(sin[position].tolist() if valid else [0.0] * ROTARY)
    for _ in range(num_rows - len(slots)):
        slots.append(-1 if flat else (-1, block_size - 1))
        positions.append(-1)
        requests.append(-1)
        cosines.append([1.0] * ROTARY)
        sines.append([0.0] * ROTARY)
    return [column[:num_rows] for column in (slots, positions, requests, cosines, sines)]


def as_lists(rows):
    slots = rows.slot_mapping.tolist()
    if rows.slot_mapping.dim() == 2:
        slots = [tuple(pair) for pair in slots]
    return [
        slots,
        rows.positions.tolist(),
        rows.requests.tolist(),
        rows.cos.tolist(),
        rows.sin.tolist(),
    ]


def guarded(num_rows, flat):
    """Poisoned outputs inside larger storages, and a check that the margins survived."""
    width = () if flat else (2,)
    ints = [torch.full((num_rows + 4, *w), 0x7FFFFFFF, dtype=torch.int32) for w in (width, (), ())]
    floats = [torch.full((num_rows + 4, ROTARY), float("nan")) for _ in range(2)]
    views = [tensor[2:-2] for tensor in (*ints, *floats)]

    def intact():
        assert all(t[:2].eq(0x7FFFFFFF).all() and t[-2:].eq(0x7FFFFFFF).all() for t in ints)
        assert all(t[:2].isnan().all() and t[-2:].isnan().all() for t in floats)

    return CompressorRows(*views), intact


def test_row_by_hand():
    """Start 6, 7 tokens, ratio 4: groups 1 and 2 (raw positions 4 and 8) complete."""
    cos, sin = tables(32)
    rows = compressor_rows(
        int32([0, 7]), int32([6]), int32([[5, 3]]), cos, sin, ratio=4, block_size=2, num_rows=3
    )
    assert rows.slot_mapping.tolist() == [5 * 2 + 1, 3 * 2, -1]
    assert rows.positions.tolist() == [4, 8, -1]
    assert rows.requests.tolist() == [0, 0, -1]
    assert torch.equal(rows.cos, torch.stack([cos[4], cos[8], torch.ones(ROTARY)]))
    assert torch.equal(rows.sin, torch.stack([sin[4], sin[8], torch.zeros(ROTARY)]))


request = st.tuples(st.integers(0, 9), st.integers(-3, 30), st.integers(0, 1))


@given(
    requests=st.lists(request, min_size=1, max_size=6),
    ratio=st.sampled_from([1, 4, 5]),
    block_size=st.sampled_from([1, 3, 4]),
    flat=st.booleans(),
    seed=st.integers(0, 99),
    short=st.integers(0, 20),
)
@settings(max_examples=60, deadline=None)
def test_random_batches(requests, ratio, block_size, flat, seed, short):
    qsl = [0]
    for length, _, _ in requests:
        qsl.append(qsl[-1] + length)
    start_pos = [start for _, start, _ in requests]
    seq_lens = [kv for _, _, kv in requests] if seed % 2 else None
    generator = torch.Generator().manual_seed(seed)
    table = torch.randint(-1, 50, (len(requests) + 1, 6), generator=generator).int()
    cos, sin = tables(40 - short)
    num_rows = compressor_row_count(qsl[-1], len(requests), ratio)
    out, intact = guarded(num_rows, flat)
    found = compressor_rows(
        int32(qsl),
        int32(start_pos),
        table,
        cos,
        sin,
        ratio=ratio,
        block_size=block_size,
        seq_lens=None if seq_lens is None else int32(seq_lens),
        out=out,
    )
    assert found is out
    expected = naive(
        qsl, start_pos, table.tolist(), cos, sin, ratio, block_size, num_rows, flat, seq_lens
    )
    assert as_lists(out) == expected
    intact()


def test_slot_past_int32_is_invalid():
    cos, sin = tables(16)
    table = int32([[2**31 - 1, 2**30]])
    rows = compressor_rows(
        int32([0, 16]), int32([0]), table, cos, sin, ratio=4, block_size=2, num_rows=4
    )
    assert rows.slot_mapping.tolist() == [-1, -1, -1, -1]


def test_padded_requests_complete_nothing():
    """Dummy requests carry queries and length 0; they must not claim page 0."""
    cos, sin = tables(16)
    table = int32([[1], [0], [0]])
    rows = compressor_rows(
        int32([0, 4, 8, 12]),
        int32([4, 0, 0]),
        table,
        cos,
        sin,
        ratio=4,
        block_size=2,
        num_rows=6,
        seq_lens=int32([8, 0, 0]),
        slot_format="block_offset",
    )
    assert rows.requests.tolist() == [0, -1, -1, -1, -1, -1]
    assert rows.slot_mapping.tolist() == [[1, 1]] + [[-1, 1]] * 5


def test_row_count_is_enough():
    assert compressor_row_count(12, 3, 4) == 6
    assert compressor_row_count(2, 3, 4) == 2


BAD = {
    "starts": ({"query_start_loc": int32([0, 1])}, "same batch"),
    "lens": ({"seq_lens": int32([1])}, "same batch"),
    "table-rows": ({"block_table": int32([[1]])}, "at least 2 rows"),
    "table-dtype": ({"block_table": torch.zeros(2, 2)}, "int32"),
    "ratio": ({"ratio": 0}, "ratio"),
    "rope": ({"sin_table": torch.zeros(3, ROTARY)}, "equal cos and sin"),
    "rows": ({"num_rows": None}, "compressor_row_count"),
    "out": ({"out": CompressorRows(int32([1]), int32([1, 2]), int32([1, 2]), *tables(2))}, "slot"),
    "out-rope": (
        {"out": CompressorRows(int32([1]), int32([1]), int32([1]), *tables(2))},
        "expected cos",
    ),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD)
def test_contradictions_are_refused(change, message):
    cos, sin = tables(8)
    arguments = {
        "query_start_loc": int32([0, 1, 2]),
        "start_pos": int32([3, 3]),
        "block_table": int32([[1], [2]]),
        "cos_table": cos,
        "sin_table": sin,
        "ratio": 4,
        "block_size": 2,
        "num_rows": 2,
    }
    with pytest.raises(LayoutError, match=message):
        compressor_rows(**{**arguments, **change})
