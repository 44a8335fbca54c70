"""Long runs of the real engine: the V2 runner under Triton's interpreter."""

import importlib.util
from dataclasses import replace

import pytest

from dsacp.vllm.engine import run_forked
from dsacp.vllm.scenario import CROWDED

if importlib.util.find_spec("vllm") is None:
    pytest.skip("needs vLLM: nox -s vllm", allow_module_level=True)

K = 3
LIMIT_S = 1800


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="V2 needs Triton")
@pytest.mark.parametrize("tp", [1, 2])
def test_v2_updates_its_metadata_in_place(figures, tp) -> None:
    """Under Triton's interpreter: minutes. One rank is compared with the stock builder too."""
    plain = run_forked(replace(CROWDED, tp=tp))
    drafting = replace(CROWDED, tp=tp, draft_tokens=K, v2=True)
    ours = run_forked(replace(drafting, dsacp=True), timeout_s=LIMIT_S)
    figures(f"V2 TP={tp} ours", ours, plain)
    assert ours.tokens == plain.tokens
    assert ours.violations == []
    assert len(ours.reports) == 2 * tp
    assert ours.calls()["update_draft_decode_metadata[1]"] > 0
    attention = ours.attention()
    assert attention["sharded_forwards"] > 0
    assert attention.get("all_to_alls", 0) == (2 * attention["sharded_forwards"] if tp > 1 else 0)
    if tp == 1:
        stock = run_forked(drafting, timeout_s=LIMIT_S)
        figures("V2 TP=1 stock", stock, plain)
        assert (ours.drafts, ours.accepted) == (stock.drafts, stock.accepted)
