"""Long runs of the real engine: prefix caching, dynamic draft tokens, the V2 runner."""

import importlib.util
from dataclasses import replace

import pytest

from dsacp.vllm.engine import run_forked
from dsacp.vllm.scenario import CROWDED, Scenario

if importlib.util.find_spec("vllm") is None:
    pytest.skip("needs vLLM: nox -s vllm", allow_module_level=True)

K = 3
LIMIT_S = 1800


@pytest.mark.slow
def test_prefix_caching_and_dynamic_draft_tokens(figures) -> None:
    """Prompts share two blocks of 256 (drafting recomputes the last); K follows the batch size."""
    cached = Scenario(
        prompts=(560, 17, 540, 33),
        max_tokens=24,
        shared_prefix=512,
        options={"enable_prefix_caching": True, "max_num_seqs": 2, "max_model_len": 1024},
    )
    plain = run_forked(cached)
    schedule = {
        "method": "mtp",
        "num_speculative_tokens": K,
        "num_speculative_tokens_per_batch_size": [[1, 1, 3], [2, 4, 1]],
    }
    options = {**cached.options, "speculative_config": schedule}
    ours = run_forked(replace(cached, draft_tokens=K, dsacp=True, options=options))
    figures(f"V1 prefix cache ({ours.cached_tokens} tokens), dynamic K", ours, plain)
    assert plain.cached_tokens > 0
    assert ours.cached_tokens > 0
    assert ours.tokens == plain.tokens
    assert ours.violations == []
    calls = ours.calls()
    assert calls["build_for_drafting[0]"] > calls.get("build_for_drafting[2]", 0)


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
    assert ours.calls()["update_draft_decode_metadata[0]"] > 0
    if tp == 1:
        stock = run_forked(drafting, timeout_s=LIMIT_S)
        figures("V2 TP=1 stock", stock, plain)
        assert (ours.drafts, ours.accepted) == (stock.drafts, stock.accepted)
