"""When the plug-in acts, and what it says when it does not. Needs no vLLM."""

import logging
from types import SimpleNamespace

import pytest

from dsacp.vllm import plugin
from dsacp.vllm.aside import Engine, listed
from dsacp.vllm.settings import Blocker, blockers, requested


@pytest.mark.parametrize(
    ("additional", "environ", "expected"),
    [
        (None, {}, False),
        ({}, {}, False),
        ({"enable_dsa_cp": True}, {}, True),
        ({"enable_dsa_cp": "true"}, {}, True),
        ({"enable_dsa_cp": "0"}, {"DSACP_ENABLE": "1"}, False),
        ({"enable_dsa_cp": False}, {"DSACP_ENABLE": "1"}, False),
        ({"other": 1}, {"DSACP_ENABLE": "1"}, True),
        (None, {"DSACP_ENABLE": "0"}, False),
    ],
)
def test_requested(additional, environ, expected) -> None:
    assert requested(additional, environ) is expected


def engine(**changes: object) -> SimpleNamespace:
    parallel = {
        "prefill_context_parallel_size": 1,
        "decode_context_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "use_ubatching": False,
    }
    speculative = {"method": "mtp", "num_speculative_tokens": 3, "parallel_drafting": False}
    for name, value in changes.items():
        (parallel if name in parallel else speculative)[name] = value
    return SimpleNamespace(
        parallel_config=SimpleNamespace(**parallel),
        speculative_config=SimpleNamespace(**speculative),
        model_config=SimpleNamespace(hf_config=SimpleNamespace(compress_ratios=[1, 4])),
    )


def test_a_plain_mtp_engine_has_no_blocker() -> None:
    assert list(blockers(engine())) == []


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("prefill_context_parallel_size", 2, "prefill context parallelism of 2"),
        ("decode_context_parallel_size", 4, "decode context parallelism of 4"),
        ("pipeline_parallel_size", 2, "pipeline parallelism of 2"),
        ("use_ubatching", True, "ubatching"),
        ("parallel_drafting", True, "parallel_drafting"),
        ("constant_draft_positions", True, "constant_draft_positions"),
        ("method", "eagle3", "'eagle3'"),
        ("num_speculative_tokens", 0, "no draft tokens"),
    ],
)
def test_each_unsupported_feature_is_named(name, value, word) -> None:
    found = [str(reason) for reason in blockers(engine(**{name: value}))]
    assert len(found) == 1
    assert word in found[0]


def test_engines_without_speculation_or_of_another_model_are_left_alone() -> None:
    plain = engine()
    plain.speculative_config = None
    assert [reason.found for reason in blockers(plain)] == ["no speculative_config"]
    other = engine()
    other.model_config.hf_config.compress_ratios = None
    assert "compress_ratios" in next(iter(blockers(other))).found


def test_standing_aside_logs_one_line_once(caplog, monkeypatch) -> None:
    monkeypatch.setattr(plugin.logger, "propagate", True)
    told = Engine()
    with caplog.at_level(logging.WARNING, logger="vllm.dsacp"):
        for _ in range(2):
            told.stand_aside([Blocker("ubatching", "switch dual batch overlap off")])
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "dsacp stands aside, the engine is unchanged: found ubatching; "
        "switch dual batch overlap off"
    ]


def test_adopt_does_nothing_unless_it_is_asked_to(monkeypatch) -> None:
    monkeypatch.delenv("DSACP_ENABLE", raising=False)
    layer = SimpleNamespace(prefix="model.layers.4.attn.swa_cache", backend_cls=object)
    assert not plugin.adopt(layer, SimpleNamespace(additional_config={}), None)
    assert layer.backend_cls is object


def test_adopt_stands_aside_before_it_touches_the_layer(caplog) -> None:
    config = engine(pipeline_parallel_size=2)
    config.additional_config = {"enable_dsa_cp": True}
    layer = SimpleNamespace(prefix="model.layers.4.attn.swa_cache", backend_cls=object)
    with caplog.at_level(logging.WARNING, logger="vllm.dsacp"):
        assert not plugin.adopt(layer, config, None)
    assert layer.backend_cls is object
    assert "set it to 1 beside DSA-CP" in caplog.text


def test_reasons_with_one_remedy_name_it_once() -> None:
    reasons = [Blocker("a", "x"), Blocker("b", "y"), Blocker("c", "x"), Blocker("a", "x")]
    assert listed(reasons) == "found a, c; x; found b; y"
