"""What lies past a table, a storage or int32: both implementations answer alike.

Without Triton only the references run.
"""

import importlib.util
import os

import pytest
import torch

if importlib.util.find_spec("triton") is not None and not torch.cuda.is_available():
    # Read when a kernel module is imported, hence before any launch of this process.
    os.environ.setdefault("TRITON_INTERPRET", "1")

from attention_cases import batch_of

from dsacp.core import CapacityError
from dsacp.kernels import (
    PLAN_WORDS,
    covered_rows,
    dspark_indices,
    plan_table,
    sas_plan,
    slot_mapping,
    sparse_attention,
)

HAS_TRITON = importlib.util.find_spec("triton") is not None
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WORD = {"dtype": torch.int32, "device": DEVICE}
POISON = 0x7FFFFFFF
WIDEST = 2**31 - 1

both = pytest.mark.parametrize("impl", ["reference", "triton"] if HAS_TRITON else ["reference"])
triton_only = pytest.mark.skipif(not HAS_TRITON, reason="the module triton is not installed")


def words(values):
    return torch.tensor(values, **WORD)


def slots(impl, positions, owners, table, size, fmt):
    out = torch.full((len(positions),) if fmt == "flat" else (len(positions), 2), POISON, **WORD)
    slot_mapping(words(positions), words(owners), words(table), size, out, fmt, impl)
    return out.tolist()


@both
@pytest.mark.parametrize("size", [1, 24, 128])
def test_slots_past_int32_do_not_exist(impl: str, size: int) -> None:
    """Page 2 ** 24 of 128 rows wrapped to slot -2147483643, which a cache write takes."""
    last, inside = divmod(WIDEST, size)
    table = [[last, min(last + 1, WIDEST), -1]]
    positions = [inside, size, 2 * size, max(inside - 1, 0), min(inside + 1, size - 1)]
    exact = [
        table[0][p // size] * size + p % size if table[0][p // size] >= 0 else WIDEST + 1
        for p in positions
    ]
    expected = [slot if slot <= WIDEST else -1 for slot in exact]
    assert expected[0] == WIDEST
    assert size == 1 or -1 in expected[1:2]
    assert slots(impl, positions, [0] * 5, table, size, "flat") == expected
    pairs = [[slot // size, slot % size] if slot >= 0 else [-1, size - 1] for slot in expected]
    assert slots(impl, positions, [0] * 5, table, size, "block_offset") == pairs


@both
def test_pairs_of_a_page_past_int32(impl: str) -> None:
    """The reference said (-16777216, 5), Triton (-1, 127)."""
    assert slots(impl, [5], [0], [[2**24]], 128, "block_offset") == [[-1, 127]]


@both
@pytest.mark.parametrize("size", [5, 128])
def test_dspark_slots_past_int32_do_not_exist(impl: str, size: int) -> None:
    last = WIDEST // size
    out = torch.full((2, 1, 8), POISON, **WORD)
    options = {"window": 4, "num_draft_tokens": 2, "block_size": size, "index_width": 8}
    table = words([[last, last + 1, 3]])
    lens = words([2])
    dspark_indices(words([0, 2]), lens, table, out=out, impl=impl, **options)
    assert out[0, 0].tolist() == [last * size, last * size + 1] + [-1] * 6
    dspark_indices(words([0, 2]), lens + size, table, out=out, impl=impl, **options)
    row = out[0, 0].tolist()
    assert max(row) <= WIDEST
    assert min(row) == -1
    assert row[4:] == [-1] * 4


@both
def test_draft_slots_past_int32_do_not_exist(impl: str, check_draft, monkeypatch) -> None:
    """Every page of the groups names a slot past int32, in sizes that shift and that divide."""
    import draft_oracle

    tables = draft_oracle.make_tables

    def far(case):
        made = tables(case)
        for table, size in zip(made, case.block_sizes, strict=True):
            table[table >= 0] += WIDEST // size - 400
        return made

    def limited(case, step, made, inner=draft_oracle.oracle_step):
        groups = inner(case, step, made)
        for fields in groups:
            kept = [slot if slot <= WIDEST else -1 for slot in fields["slot_mapping"]]
            fields["slot_mapping"] = kept
        return groups

    monkeypatch.setattr(draft_oracle, "make_tables", far)
    monkeypatch.setattr(draft_oracle, "oracle_step", limited)
    check_draft(impl, device=DEVICE, block_sizes=(16, 24), table_widths=(64, 30))


@both
def test_requests_past_the_table_have_no_slot(impl: str) -> None:
    """Row 2 of a table of two rows was read from the memory behind it, or was another request's."""
    store = torch.full((4, 2), 3, **WORD)
    out = torch.full((4,), POISON, **WORD)
    owners = words([0, 1, 2, -1])
    slot_mapping(words([1] * 4), owners, store[:2], 4, out, impl=impl)
    assert out.tolist() == [13, 13, -1, -1]


@both
@pytest.mark.parametrize("sizes", [(16,), (16, 24)])
def test_draft_requests_past_the_table_have_no_slot(impl: str, sizes, check_draft, monkeypatch):
    """Five requests on a table of two rows: slots came from foreign memory."""
    import draft_oracle

    inner = draft_oracle.oracle_step

    def limited(case, step, tables):
        known = case.with_(table_rows=len(case.lens))
        groups = inner(case, step, draft_oracle.make_tables(known))
        owned = case.starts[case.table_rows] if step == 0 else case.table_rows
        for fields in groups:
            held = fields["slot_mapping"]
            fields["slot_mapping"] = held[:owned] + [-1] * (len(held) - owned)
        return groups

    def narrow(case, widths=draft_oracle.make_tables):
        rows = len(case.lens)
        return [table[: case.table_rows] for table in widths(case.with_(table_rows=rows))]

    monkeypatch.setattr(draft_oracle, "oracle_step", limited)
    tables = draft_oracle.make_tables

    def run_tables(case):
        return narrow(case, tables) if case.table_rows == 2 else tables(case)

    monkeypatch.setattr(draft_oracle, "make_tables", run_tables)
    check_draft(
        impl,
        device=DEVICE,
        starts=[0, 4, 8, 12, 15, 16],
        lens=[100, 57, 9, 30, 31],
        rejected=[0] * 5,
        rows=[5, 16, 16],
        block_sizes=sizes,
        table_widths=(64,) * len(sizes),
        table_rows=2,
    )


@triton_only
@pytest.mark.parametrize("policy", [0, 1])
def test_a_host_table_of_too_many_requests_is_refused(policy: int) -> None:
    """40,000 one-token requests on 4 cores: core 0 got all of them."""
    from dsacp.kernels.sas_plan.triton import launch_rows

    rows = 16385
    out = torch.full((PLAN_WORDS,), POISON, **WORD)
    plan = [0, 0, 0, rows, 0, 64, 0, 4, 127, 0, 1, 0, policy, -1, 0, 0]
    starts, lens = torch.arange(rows + 1, **WORD), torch.ones(rows, **WORD)
    with pytest.raises(CapacityError, match="plan 0 has 16385 requests, a device plans 16384"):
        launch_rows(starts, lens, out, [plan])
    assert out.eq(POISON).all()


@triton_only
@pytest.mark.parametrize(("policy", "rows"), [(0, 16385), (1, 16385), (0, 9)])
def test_a_device_table_of_too_many_requests_covers_nothing(policy: int, rows: int) -> None:
    """16,400 requests were cut to a legal plan of the first 16,384; 9 of 8 read foreign words."""
    out = torch.full((PLAN_WORDS,), POISON, **WORD)
    plan = plan_table([(0, 0, 0, rows, 0, 64, 0, 4, 127, 0, 1, 0, policy, -1, 0, 0)], DEVICE)
    starts, lens = torch.arange(rows + 1, **WORD), torch.ones(rows, **WORD)
    sas_plan(starts, lens[: min(rows, 8)] if rows < 99 else lens, out, plan, impl="triton")
    assert out.ne(POISON).all()
    covered = covered_rows(out, starts, "a2", 64, 4, num_tokens=rows, impl="reference")
    assert not covered.any()


@triton_only
@pytest.mark.parametrize("policy", [0, 1])
@pytest.mark.parametrize("ratio", [1, 4])
def test_plans_of_a_window_without_end(policy: int, ratio: int) -> None:
    """window_right = 2 ** 31 - 1, which a specification accepts, wrapped."""
    starts, lens = words([0, 40, 41, 50]), words([700, 9000, 9])
    row = (0, 0, 0, 3, 0, 64, 0, 4, 127, WIDEST, ratio, 0, policy, -1, 0, 0)
    expected, found = torch.full((2, PLAN_WORDS), POISON, **WORD)
    sas_plan(starts, lens, expected, plan_table([row]), impl="reference")
    sas_plan(starts, lens, found, plan_table([row], DEVICE), impl="triton")
    assert found.tolist() == expected.tolist()


@triton_only
@pytest.mark.parametrize("side", ["window_left", "window_right"])
def test_attention_in_a_window_without_end(side: str) -> None:
    """Rows came out as zeros: the last position of the window had wrapped."""
    batch = batch_of([(3, 9), (4, 2)], dim=16, dtype=torch.float32)
    args = [tensor.to(DEVICE) for tensor in batch.args()]
    options = batch.options() | {"window_left": 2, "window_right": 2}
    wide, enough = ({**options, side: bound} for bound in (WIDEST, 1000))
    found = sparse_attention(*args, **wide, impl="triton")
    assert torch.equal(found, sparse_attention(*args, **enough, impl="triton"))
    expected = sparse_attention(*args, **wide, impl="reference")
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@triton_only
def test_attention_heads_far_apart(is_npu: bool) -> None:
    """A transposed [N, T, D] of 66,577 tokens has 2 ** 31 elements between its outer heads.

    The storage is never touched but for the heads' own rows, so it costs address space only.
    """
    if is_npu:
        pytest.skip("a run as compiled for an NPU copies the 4 GiB between the heads")
    batch = batch_of([(1, 9)], heads=33, dim=16, dtype=torch.float16)
    args = [tensor.to(DEVICE) for tensor in batch.args()]
    expected = sparse_attention(*args, **batch.options(), impl="triton")
    far = [
        torch.empty(2**31 + 16, dtype=torch.float16, device=DEVICE).as_strided(
            (1, 33, 16), (16, 2**26, 1)
        )
        for _ in "qo"
    ]
    far[0].copy_(args[0])
    sparse_attention(far[0], *args[1:], **batch.options(), out=far[1], impl="triton")
    assert torch.equal(far[1], expected)
