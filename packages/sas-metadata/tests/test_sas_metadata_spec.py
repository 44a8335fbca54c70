"""The op's checks (upstream U3), before any buffer is touched."""

import pytest
import torch

from dsacp.core import LayoutError
from dsacp.sas_metadata import QliSpec, SasSpec, plan_qli, plan_sas


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_heads": 0}, "num_heads >= 1 .*, found 0"),
        ({"num_heads": 32, "device_family": "a5"}, "64 or 128 heads on a5, found 32"),
        ({"device_family": "a3"}, "device family in .*'a2', 'a5'.*, found 'a3'"),
        ({"num_cores": 0}, "num_cores in 1..36 .*, found 0"),
        ({"num_cores": 37}, "num_cores in 1..36 .*, found 37"),
        (
            {"num_heads": 128, "device_family": "a5", "num_cores": 25},
            "even core count .*, found 25: launch on 24 or 26",
        ),
        ({"window_left": -1}, "window_left >= 0 .*, found -1"),
        ({"window_right": -2}, "window_right >= 0 .*, found -2"),
        ({"cmp_topk": -1}, "cmp_topk >= 0 .*, found -1"),
        ({"cmp_topk": 1 << 70}, "cmp_topk >= 0 .* below 2147483648"),
        ({"cmp_ratio": 2}, "cmp_ratio 1, 4 or 128, found 2"),
    ],
)
def test_sas_spec_refuses(arguments, message):
    with pytest.raises(LayoutError, match=message):
        SasSpec(**{"num_heads": 64, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_heads": 32}, "expected 64 indexer heads, found 32"),
        ({"cmp_ratio": 3}, "cmp_ratio in .*128.* on a2, found 3"),
        ({"cmp_ratio": 2, "device_family": "a5"}, "cmp_ratio in .*1, 4, 128.* on a5, found 2"),
        ({"num_cores": 40}, "num_cores in 1..36 .*, found 40"),
    ],
)
def test_qli_spec_refuses(arguments, message):
    with pytest.raises(LayoutError, match=message):
        QliSpec(**arguments)


def test_any_topk_is_planned():
    """Small models select fewer keys than upstream's 512 or 1024."""
    assert SasSpec(64, cmp_ratio=4, cmp_topk=7).cmp_topk == 7


@pytest.mark.parametrize("plan", [plan_sas, plan_qli])
def test_bad_input_touches_nothing(plan):
    spec = SasSpec(64) if plan is plan_sas else QliSpec()
    out = torch.full((1024,), 0x7FFFFFFF, dtype=torch.int32)
    calls = [
        ((int32(0, 4, 8), int32(9)), {}, "query_start_loc of 2 entries for 1 requests, found 3"),
        ((int32(0, 4), int32(9).long()), {}, "seq_lens as contiguous 1-D int32, found torch.int64"),
        ((int32(0, 4), int32(9)), {"policy": "best"}, "a policy in .*, found 'best'"),
    ]
    for args, options, message in calls:
        with pytest.raises(LayoutError, match=message):
            plan(spec, *args, out=out, **options)
    assert (out == 0x7FFFFFFF).all()
    with pytest.raises(LayoutError, match="out of 1024 words, found 900"):
        plan(spec, int32(0, 4), int32(9), out=out[:900])


def test_plan_row_columns():
    row = SasSpec(128, "a5", 8, 130, 1, 4, 512).plan_row(10, 20, 30, 5, "balanced", same_as=2)
    assert row == (10, 20, 30, 5, 0, 128, 1, 8, 130, 1, 4, 512, 1, 2, 0, 0)
    assert QliSpec(num_cores=6).plan_row(1, 2, 3, 4) == (
        1, 2, 3, 4, 1, 64, 0, 6, 0, 0, 4, 0, 0, -1, 0, 0,
    )  # fmt: skip
