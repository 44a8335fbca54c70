"""What upstream's draft path calls after every replay exists only while nothing is left to it."""

from types import SimpleNamespace
from typing import Any

import pytest
from ascend_double import HostDouble, install
from ascend_double.scenario import concurrency, host, run, stock

from dsacp.core import UnsupportedHostError
from dsacp.vllm.ascend.builder import make_builder_class
from dsacp.vllm.ascend.host import Host
from dsacp.vllm.ascend.plugin import refuse_groups

NAME = "update_graph_params"


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Return an attention class as upstream ships it, and our builder beside it."""
    modules = install()
    bases = modules.dsa_cp.AscendDSACPImpl.__mro__
    for base in bases:
        if NAME in vars(base):
            monkeypatch.delattr(base, NAME)
    impl = type("AscendDSACPImpl", (bases[0],), {})
    monkeypatch.setattr(modules.dsa_cp, "AscendDSACPImpl", impl)
    return impl, make_builder_class(stock(), Host.of(modules.dsa_cp, modules.rope))


def unsupported() -> HostDouble:
    """Return a double whose configuration is refused: pipeline parallelism beside DSA-CP."""

    class Pipelined(HostDouble):
        @property
        def config(self) -> Any:
            config = super().config
            config.parallel_config.pipeline_parallel_size = 2
            return config

    return Pipelined(3, 2, 0, max_num_seqs=64, max_num_batched_tokens=64)


def test_a_builder_that_serves_brings_the_method(fresh: tuple[Any, Any]) -> None:
    """Upstream U29: upstream's class has none, so its draft replay fails loudly."""
    impl, cls = fresh
    builder = host().builder(cls)
    assert not hasattr(impl, NAME), "no step has been served"
    run(builder, host(), concurrency())
    assert impl.update_graph_params("stream", None, 16, None, draft_attn_metadatas=[]) is None


def test_a_refused_engine_keeps_upstreams_failure(fresh: tuple[Any, Any]) -> None:
    """Upstream's later steps move, so a replay that goes on would read freed memory."""
    impl, cls = fresh
    double = unsupported()
    builder = double.builder(cls)
    assert "pipeline parallelism of 2" in builder.dsacp_refused
    run(builder, double, concurrency())
    with pytest.raises(AttributeError, match=NAME):
        impl.update_graph_params()


@pytest.mark.parametrize("first", ["serves", "refused"])
def test_one_refused_builder_is_enough(fresh: tuple[Any, Any], first: str) -> None:
    """Target layers are served, two draft groups are not: the replay says so."""
    impl, cls = fresh
    double = HostDouble(3, 2, 0, max_num_seqs=64, max_num_batched_tokens=64)
    serving, *drafting = (double.builder(cls) for _ in range(3))
    if first == "serves":
        run(serving, double, concurrency())
    groups = [SimpleNamespace(metadata_builders=[builder]) for builder in drafting]
    refuse_groups(SimpleNamespace(draft_attn_groups=groups, method="mtp"))
    run(serving, double, concurrency())
    with pytest.raises(UnsupportedHostError, match="2 draft attention groups.*enforce_eager"):
        impl.update_graph_params()
    del drafting, groups
    assert impl.update_graph_params() is None, "an engine that is gone decides nothing"


def replay(impl: Any, builder: Any) -> Any:
    """Call the method as upstream's ``update_full_graph_params`` does for a builder's engine."""
    config = builder.vllm_config
    given = ("stream", None, 16, config, builder.speculative_config)
    return impl.update_graph_params(*given, draft_attn_metadatas=[])


def test_an_earlier_engine_decides_nothing(fresh: tuple[Any, Any]) -> None:
    """Two engines in one process: a refused builder that was not yet freed ended the next engine.

    The first engine's graphs are still judged by its own builders.
    """
    impl, cls = fresh
    double = HostDouble(3, 2, 0, max_num_seqs=64, max_num_batched_tokens=64)
    refused, serving = unsupported().builder(cls), double.builder(cls)
    run(serving, double, concurrency())
    assert replay(impl, serving) is None
    with pytest.raises(UnsupportedHostError, match="pipeline parallelism of 2.*enforce_eager"):
        replay(impl, refused)


def test_an_engine_that_is_switched_off_keeps_upstreams_failure(
    fresh: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine with DSACP_ENABLE=0 replayed freed addresses: an earlier one's no-op was left.

    Neither does a builder of the earlier engine speak for it.
    """
    impl, cls = fresh
    double = HostDouble(3, 2, 0, max_num_seqs=64, max_num_batched_tokens=64)
    serving = double.builder(cls)
    run(serving, double, concurrency())
    monkeypatch.setenv("DSACP_ENABLE", "0")
    with pytest.raises(UnsupportedHostError, match="none in an engine that DSACP_ENABLE"):
        replay(impl, double.builder(stock()))
    assert replay(impl, serving) is None, "the earlier engine goes on"
