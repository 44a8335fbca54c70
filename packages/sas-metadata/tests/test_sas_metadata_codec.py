"""Words to ranges and back, and what the legality check refuses."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsacp.core import CapacityError, LayoutError
from dsacp.sas_metadata import (
    CoreRange,
    QliSpec,
    SasHolder,
    SasSpec,
    check_legal,
    decode_sas,
    encode_sas,
    explain,
    plan_sas,
)

STARTS, LENS = [0, 4, 8, 9], [5000, 300, 70000]
PAIRED = SasSpec(128, "a5", 8, cmp_ratio=128)


def planned(spec, policy="upstream"):
    starts, lens = (torch.tensor(v, dtype=torch.int32) for v in (STARTS, LENS))
    return plan_sas(spec, starts, lens, policy=policy)


@settings(max_examples=50, deadline=None)
@given(
    spec=st.sampled_from([SasSpec(64), SasSpec(64, "a5", 36), PAIRED, QliSpec(num_cores=5)]),
    cuts=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), min_size=1, max_size=4),
    count=st.integers(0, 1 << 20),
)
def test_round_trip(spec, cuts, count):
    cuts.sort()
    ranges = [
        CoreRange(core, *start, *end)
        for core, (start, end) in enumerate(zip([(0, 0), *cuts], cuts, strict=False))
    ]
    words = encode_sas(ranges, spec, block_count=count)
    assert decode_sas(words, spec) == ranges
    assert decode_sas(words.tolist(), spec) == ranges
    paired = spec == PAIRED
    assert words[8 : 9 * 8 : 9].tolist().count(count) >= (8 if paired else 0)


def test_encode_refuses_gaps_and_too_many_ranges():
    with pytest.raises(LayoutError, match="expected core 1 from \\(1, 0\\), found core 1 from"):
        encode_sas([CoreRange(0, 0, 0, 1, 0), CoreRange(1, 1, 1, 2, 0)], SasSpec(64))
    with pytest.raises(LayoutError, match="expected 1..4 ranges, found 5"):
        encode_sas([CoreRange(core, core, 0, core + 1, 0) for core in range(5)], PAIRED)
    with pytest.raises(LayoutError, match="expected 1024 words, found 1023"):
        decode_sas(torch.zeros(1023, dtype=torch.int32), SasSpec(64))


@pytest.mark.parametrize(
    ("spec", "word", "value", "message"),
    [
        (SasSpec(64), 0, 0x7FFFFFFF, "enable word 0 or 1 of core 0, found 2147483647"),
        (SasSpec(64), 8 * 23, 7, "enable word 0 or 1 of core 23, found 7"),
        (SasSpec(64), 6, 1, "KV cursors 0 of core 0, found 0 and 1"),
        (SasSpec(64), 2, 1, "expected the range of core 0 to start at \\(0, 0\\)"),
        (SasSpec(64), 8, 0, "expected the range of core 1"),
        (SasSpec(64), 5, 9, "expected the range of core 1 to start at|ends at row 9"),
        (PAIRED, 9, 0, "equal records of cores 0 and 1"),
    ],
)
def test_legality(spec, word, value, message):
    words = planned(spec)
    check_legal(words, spec, STARTS, LENS)
    words[word] = value
    with pytest.raises(LayoutError, match=message):
        check_legal(words, spec, STARTS, LENS)


def test_legality_wants_all_rows():
    words = planned(SasSpec(64))
    with pytest.raises(LayoutError, match="expected the last range to end at \\(4, 0\\), found"):
        check_legal(words, SasSpec(64), [*STARTS, 10], [*LENS, 5])
    with pytest.raises(LayoutError, match="rows: plan again for this batch"):
        check_legal(words, SasSpec(64), [0, 1, 2, 3], LENS)


def test_short_block_count_would_hang():
    """A5 with 128 heads: a plan of shorter lengths holds a count below what the cores will do."""
    words = planned(PAIRED)
    with pytest.raises(LayoutError, match="expected word 8 of core 0 >= 168 KV blocks, found"):
        check_legal(words, PAIRED, STARTS, [900000, 300, 70000])
    words[8:72:9] = 1 << 20
    check_legal(words, PAIRED, STARTS, [900000, 300, 70000])


def test_holder_keeps_its_address_and_takes_short_tensors():
    """Profile runs hand over fewer than 1024 words: a whole-buffer copy raised a shape error."""
    holder = SasHolder()
    address = holder.words.data_ptr()
    plan = planned(SasSpec(64))
    assert holder.update(plan).data_ptr() == address
    assert torch.equal(holder.words, plan)
    holder.update(torch.full((9,), 5, dtype=torch.int32))
    assert holder.words[:9].tolist() == [5] * 9
    assert holder.words[9:].abs().sum() == 0
    with pytest.raises(CapacityError, match="found 1025 words, the holder has 1024"):
        holder.update(torch.zeros(1025, dtype=torch.int32))
    with pytest.raises(LayoutError, match="1-D int32, found torch.int64"):
        holder.update(torch.zeros(9, dtype=torch.int64))
    assert holder.words.data_ptr() == address


@pytest.mark.parametrize("spec", [SasSpec(64), PAIRED])
def test_explain_adds_up(spec):
    lines = explain(planned(spec), spec, STARTS, LENS).splitlines()
    ranges = decode_sas(planned(spec), spec)
    table = lines[2 : 2 + len(ranges)]
    assert sum(int(line.split()[-3]) for line in table) == 9
    cost = sum(int(line.split()[-2]) for line in table)
    assert f"total cost {cost}" in lines[-2]
    assert "no plan goes below" in lines[-1]
    assert table[0].split()[0] == ("0+1" if spec == PAIRED else "0")


def test_explain_of_an_empty_batch():
    words = plan_sas(SasSpec(64), *(torch.zeros(n, dtype=torch.int32) for n in (3, 2)))
    assert "nothing to attend to" in explain(words, SasSpec(64), [0, 0, 0], [0, 0])
