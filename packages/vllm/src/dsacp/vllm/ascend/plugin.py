"""Puts our builder where vllm-ascend asks its backend for one."""

import importlib
import importlib.util
import logging
import sys
from functools import cache, wraps
from types import ModuleType
from typing import Any

from dsacp.vllm.ascend.hooks import missing_hooks
from dsacp.vllm.ascend.imports import when_imported
from dsacp.vllm.ascend.settings import group_blocker, switched_off
from dsacp.vllm.settings import Blocker

logger = logging.getLogger("vllm.dsacp")

BACKEND_MODULE = "vllm_ascend.attention.dsa_v1"
BUILDER_MODULE = "vllm_ascend.attention.context_parallel.dsa_cp"
ROPE_MODULE = "vllm_ascend.ops.rope_dsv4"
PROPOSER_MODULE = "vllm_ascend.spec_decode.llm_base_proposer"
SPECULATOR_MODULE = "vllm_ascend.worker.v2.spec_decode.autoregressive.speculator"
ADVANCE = "attn_update_stack_num_spec_norm"
"""The proposer's step from one draft pass to the next, by which its class is known."""


def register_ascend() -> bool:
    """Wait for vllm-ascend's modules; returns whether this is a vllm-ascend host."""
    if importlib.util.find_spec("vllm_ascend") is None:
        return False
    when_imported(BACKEND_MODULE, _hook_backend)
    when_imported(PROPOSER_MODULE, _hook_proposer)
    when_imported(SPECULATOR_MODULE, _hook_speculator)
    return True


def _hook_speculator(module: ModuleType) -> None:
    from dsacp.vllm.ascend.runner_v2 import hook_speculator

    hook_speculator(module)


def _hook_backend(module: ModuleType) -> None:
    backend = getattr(module, "AscendDSABackend", None)
    stock_getter = getattr(backend, "get_builder_cls", None)
    if backend is None or stock_getter is None:
        _say(Blocker(f"no AscendDSABackend.get_builder_cls in {module.__name__}", "update dsacp"))
        return

    @wraps(stock_getter)
    def get_builder_cls() -> Any:
        return choose(stock_getter())

    backend.get_builder_cls = staticmethod(get_builder_cls)


def choose(stock: Any) -> Any:
    """Return our builder for upstream's DSA-CP builder, and any other builder as it is."""
    if stock.__module__ != BUILDER_MODULE or switched_off():
        return stock
    return _ours(stock)


@cache
def _ours(stock: Any) -> Any:
    dsa_cp, rope = sys.modules[BUILDER_MODULE], importlib.import_module(ROPE_MODULE)
    reasons = list(missing_hooks(dsa_cp, rope))
    if reasons:
        _say(*reasons)
        return stock
    from dsacp.vllm.ascend.builder import make_builder_class
    from dsacp.vllm.ascend.host import Host

    add_graph_params(dsa_cp.AscendDSACPImpl)
    logger.info("dsacp builds the metadata of DSA-CP layers in place of %s", stock.__name__)
    return make_builder_class(stock, Host.of(dsa_cp, rope))


def add_graph_params(impl: Any) -> None:
    """Give an attention class the no-op that the draft path calls after every graph replay.

    There is nothing to update: buffers are refreshed in place before the replay.
    """
    if not hasattr(impl, "update_graph_params"):

        def update_graph_params(*args: Any, **kwargs: Any) -> None:
            """Nothing to do (dsacp): captured addresses hold the new values."""

        impl.update_graph_params = staticmethod(update_graph_params)


def _hook_proposer(module: ModuleType) -> None:
    for cls in {value for value in vars(module).values() if isinstance(value, type)}:
        if ADVANCE in vars(cls) and hasattr(cls, "initialize_attn_backend"):
            _wrap_groups(cls)


def _wrap_groups(cls: Any) -> None:
    stock = cls.initialize_attn_backend

    @wraps(stock)
    def initialize_attn_backend(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = stock(self, *args, **kwargs)
        refuse_groups(self)
        return result

    cls.initialize_attn_backend = initialize_attn_backend


def refuse_groups(proposer: Any) -> None:
    """Leave draft steps to the host where draft layers lie in more than one KV group."""
    groups = getattr(proposer, "draft_attn_groups", None) or []
    blocker = group_blocker(len(groups), getattr(proposer, "method", None))
    if blocker is None:
        return
    for group in groups:
        for builder in getattr(group, "metadata_builders", []):
            if hasattr(builder, "dsacp_refused"):
                builder.dsacp_refused = str(blocker)
                _say(blocker)


def _say(*reasons: Blocker) -> None:
    from dsacp.vllm.plugin import stand_aside

    stand_aside(list(reasons))
