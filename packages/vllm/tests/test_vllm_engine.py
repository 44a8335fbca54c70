"""The real engine on the tiny model: equal tokens, acceptance, guard. Needs vLLM on a CPU."""

import importlib.util
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dsacp.vllm.engine import run_forked
from dsacp.vllm.scenario import CROWDED, Outcome, Scenario

if importlib.util.find_spec("vllm") is None:
    pytest.skip("needs vLLM: nox -s vllm", allow_module_level=True)

K = 3
LENGTHS = [40, 40, 26, 40, 40, 40, 40]


def listen(path: Path) -> Callable[[], None]:
    """Keep what our logger lets through in an engine's processes, which are forks of this one."""

    def keep(record: logging.LogRecord) -> bool:
        with path.open("a") as stream:
            stream.write(record.getMessage() + "\n")
        return True

    # a handler would be taken away when vLLM configures its loggers
    return lambda: logging.getLogger("vllm.dsacp").addFilter(keep)


def clear_stale_map(path: Path) -> Callable[[], None]:
    """Run the stock builder with the map cleared that the proposer leaves behind from step 0.

    A line goes to ``path`` whenever the map that a later step was given names other requests.
    """

    def build_for_drafting(self, common_attn_metadata, draft_index):
        left = common_attn_metadata._token_to_req_indices_cache
        rows = list(range(common_attn_metadata.num_reqs))
        if draft_index and left is not None and left[: len(rows)].tolist() != rows:
            with path.open("a") as stream:
                stream.write(f"step {draft_index}: {left.tolist()}\n")
        if draft_index:
            common_attn_metadata = common_attn_metadata.replace(_token_to_req_indices_cache=None)
        return self.build(0, common_attn_metadata, fast_build=True)

    def before() -> None:
        from vllm.v1.attention.backends.mla import sparse_swa as swa

        swa.DeepseekSparseSWAMetadataBuilder.build_for_drafting = build_for_drafting

    return before


@pytest.fixture(scope="module")
def plain() -> Outcome:
    return run_forked(CROWDED)


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("log") / "ours.log"


@pytest.fixture(scope="module")
def ours(log) -> Outcome:
    return run_forked(replace(CROWDED, draft_tokens=K, dsacp=True), before=listen(log))


def check_ours(outcome: Outcome, ranks: int) -> None:
    """A rank has a builder of the target's side and one of the drafter's, and shards every step."""
    assert outcome.violations == []
    assert len(outcome.reports) == 2 * ranks
    for report in outcome.reports:
        assert report["guarded"]["builds"] > 0
        assert report["guarded"]["addresses"] > 0
        calls = report["calls"]
        builds = sum(count for name, count in calls.items() if "drafting" in name)
        # a report is written at a build, so the last step's forward pass is not in it
        sharded = max(builds - 1, 0)
        attention = report["attention"]
        assert attention.get("sharded_forwards", 0) == sharded
        assert attention.get("all_to_alls", 0) == (2 * sharded if ranks > 1 else 0)
    assert outcome.attention()["sharded_forwards"] > 0


def test_v1_gives_the_tokens_of_plain_decoding(plain, ours, log, figures) -> None:
    """Joins, leaves, a prompt beyond the window and one at max_model_len; guard on throughout."""
    figures("V1 TP=1 ours", ours, plain)
    assert ours.tokens == plain.tokens
    assert [len(tokens) for tokens in ours.tokens] == LENGTHS
    whole = [tokens for tokens in ours.tokens if len(tokens) == CROWDED.max_tokens]
    assert sum(map(len, whole)) == 6 * 40
    (line,) = log.read_text().splitlines()
    assert line.startswith("dsacp builds the metadata of model.layers.4.")
    check_ours(ours, ranks=1)
    calls = ours.calls()
    steps = [calls[f"build_for_drafting[{index}]"] for index in range(K)]
    assert steps[0] > 0
    assert steps == [steps[0]] * K
    # the target side builds also where the drafter stops short of max_model_len
    assert calls["build[0]"] >= steps[0]


def test_acceptance_is_the_stock_builders_with_its_map_cleared(
    plain, ours, figures, tmp_path
) -> None:
    """vLLM 0.32: later draft tokens read request 0's block table (V1).

    No stale map any more: upstream clears it, and ``DsacpBuilderMixin._build`` need not.
    """
    stale = tmp_path / "stale"
    stock = run_forked(replace(CROWDED, draft_tokens=K), before=clear_stale_map(stale))
    figures("V1 TP=1 stock, map cleared", stock, plain)
    assert stock.reports == []
    assert (stock.drafts, stock.accepted) == (ours.drafts, ours.accepted)
    assert stock.tokens == ours.tokens
    assert ours.accepted[0] > ours.drafts // 3
    assert stale.exists()


def test_v1_on_two_ranks_shards_the_draft_layers_tokens(figures) -> None:
    plain = run_forked(replace(CROWDED, tp=2))
    sharded = run_forked(replace(CROWDED, tp=2, draft_tokens=K, dsacp=True))
    figures("V1 TP=2 ours", sharded, plain)
    assert sharded.tokens == plain.tokens
    assert [len(tokens) for tokens in sharded.tokens] == LENGTHS
    check_ours(sharded, ranks=2)
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


def test_an_unsupported_feature_leaves_the_engine_as_it_was(plain, tmp_path) -> None:
    """Asked for without speculation there is nothing to serve: one line, and no builder of ours."""
    asked = replace(CROWDED, dsacp=True, prompts=CROWDED.prompts[:2], max_tokens=4)
    outcome = run_forked(asked, before=listen(tmp_path / "log"))
    assert (tmp_path / "log").read_text().splitlines() == [
        "dsacp stands aside, the engine is unchanged: found no speculative_config; start with "
        "method 'mtp' to have draft layers"
    ]
    assert outcome.reports == []
    assert outcome.tokens == [tokens[:4] for tokens in plain.tokens[:2]]
