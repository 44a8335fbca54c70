"""The real engine on the tiny model: equal tokens, acceptance, guard. Needs vLLM on a CPU."""

import importlib.util
from dataclasses import replace

import pytest

from dsacp.vllm.engine import run_forked
from dsacp.vllm.scenario import CROWDED, Outcome, Scenario

if importlib.util.find_spec("vllm") is None:
    pytest.skip("needs vLLM: nox -s vllm", allow_module_level=True)

K = 3
LENGTHS = [40, 40, 26, 40, 40, 40]


def clear_stale_map() -> None:
    """Run the stock builder with the proposer's stale token-to-request map cleared."""
    from vllm.v1.attention.backends.mla.sparse_swa import DeepseekSparseSWAMetadataBuilder as Stock

    def build_for_drafting(self, common_attn_metadata, draft_index):
        fresh = common_attn_metadata.replace(_token_to_req_indices_cache=None)
        return self.build(0, fresh, fast_build=True)

    Stock.build_for_drafting = build_for_drafting


@pytest.fixture(scope="module")
def plain() -> Outcome:
    return run_forked(CROWDED)


@pytest.fixture(scope="module")
def ours() -> Outcome:
    return run_forked(replace(CROWDED, draft_tokens=K, dsacp=True))


def check_ours(outcome: Outcome, instances: int) -> None:
    assert outcome.violations == []
    assert len(outcome.reports) == instances
    guarded = [report["guarded"] for report in outcome.reports]
    assert all(entry["builds"] > 0 and entry["addresses"] > 0 for entry in guarded)


def test_v1_gives_the_tokens_of_plain_decoding(plain, ours, figures) -> None:
    """Joins, leaves, a prompt beyond the window and one at max_model_len; guard on throughout."""
    figures("V1 TP=1 ours", ours, plain)
    assert ours.tokens == plain.tokens
    assert [len(tokens) for tokens in ours.tokens] == LENGTHS
    check_ours(ours, instances=2)
    calls = ours.calls()
    steps = [calls[f"build_for_drafting[{index}]"] for index in range(K)]
    assert steps[0] > 0
    assert steps == [steps[0]] * K
    # the target side builds also where the drafter stops short of max_model_len
    assert calls["build[0]"] >= steps[0]


def test_acceptance_is_the_stock_builders_with_its_map_cleared(plain, ours, figures) -> None:
    stock = run_forked(replace(CROWDED, draft_tokens=K), before=clear_stale_map)
    figures("V1 TP=1 stock, map cleared", stock, plain)
    assert stock.reports == []
    assert (stock.drafts, stock.accepted) == (ours.drafts, ours.accepted)
    assert stock.tokens == ours.tokens
    assert ours.accepted[0] > ours.drafts // 3


def test_v1_on_two_ranks_shards_the_draft_layers_tokens(figures) -> None:
    plain = run_forked(replace(CROWDED, tp=2))
    sharded = run_forked(replace(CROWDED, tp=2, draft_tokens=K, dsacp=True))
    figures("V1 TP=2 ours", sharded, plain)
    assert sharded.tokens == plain.tokens
    assert [len(tokens) for tokens in sharded.tokens] == LENGTHS
    check_ours(sharded, instances=4)
    assert sharded.guarded()["padding_rows"] > 0


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


def test_an_unsupported_feature_leaves_the_engine_as_it_was(plain) -> None:
    """Asked for without speculation there is nothing to serve: our builder is never made."""
    asked = run_forked(replace(CROWDED, dsacp=True, prompts=CROWDED.prompts[:2], max_tokens=4))
    assert asked.reports == []
    assert asked.tokens == [tokens[:4] for tokens in plain.tokens[:2]]
