"""Puts our builder where vllm-ascend asks its backend for one."""

import importlib
import importlib.util
import logging
import sys
from collections.abc import Iterator
from functools import wraps
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from dsacp.vllm.ascend.hooks import ADVANCE, drafting_hooks, missing_hooks
from dsacp.vllm.ascend.imports import when_imported
from dsacp.vllm.ascend.settings import group_blocker, remedy, switched_off
from dsacp.vllm.aside import Engine, current_engine
from dsacp.vllm.settings import Blocker

logger = logging.getLogger("vllm.dsacp")

BACKEND_MODULE = "vllm_ascend.attention.dsa_v1"
BUILDER_MODULE = "vllm_ascend.attention.context_parallel.dsa_cp"
ROPE_MODULE = "vllm_ascend.ops.rope_dsv4"
PROPOSER_MODULE = "vllm_ascend.spec_decode.llm_base_proposer"
SPECULATOR_MODULE = "vllm_ascend.worker.v2.spec_decode.autoregressive.speculator"
DEVICE_TYPE = "npu"
"""Of vllm-ascend's platform."""
PLAIN_BUILDER = "AscendDSAMetadataBuilder"
"""What the backend gives without DSA-CP; never ours."""


def register_ascend() -> bool:
    """Wait for vllm-ascend's modules; returns whether this is a vllm-ascend host.

    One that is installed beside another platform is waited for too: its modules then never come.
    """
    spec = importlib.util.find_spec("vllm_ascend")
    if spec is None:
        return False
    if moved := list(moved_modules(spec)):
        Engine().stand_aside(moved)  # no engine yet; each of this process waits in vain
    when_imported(BACKEND_MODULE, _hook_backend)
    when_imported(PROPOSER_MODULE, _hook_proposer)
    when_imported(SPECULATOR_MODULE, _hook_speculator)
    if (device := device_type()) == DEVICE_TYPE:
        return True
    logger.info(
        "vllm-ascend is installed and the platform is %s: dsacp acts as in plain vLLM", device
    )
    return False


def device_type() -> str:
    """Return the device type of the platform that vLLM has chosen."""
    from vllm.platforms import current_platform

    return str(current_platform.device_type)


def moved_modules(spec: ModuleSpec) -> Iterator[Blocker]:
    """Yield every module that we wait for and that this vllm-ascend has no file of.

    Args:
        spec: of ``vllm_ascend``; nothing of it is imported.
    """
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    for name in (BACKEND_MODULE, BUILDER_MODULE, ROPE_MODULE, PROPOSER_MODULE):
        path = Path(*name.split(".")[1:])
        files = (path.with_suffix(".py"), path / "__init__.py")
        if not any((folder / file).exists() for folder in folders for file in files):
            yield Blocker(f"a vllm-ascend without {name}", remedy())


def _hook_speculator(module: ModuleType) -> None:
    from dsacp.vllm.ascend.runner_v2 import hook_speculator

    hook_speculator(module)


def _hook_backend(module: ModuleType) -> None:
    backend = getattr(module, "AscendDSABackend", None)
    stock_getter = getattr(backend, "get_builder_cls", None)
    if backend is None or stock_getter is None:
        found = f"no AscendDSABackend.get_builder_cls in {module.__name__}"
        current_engine().stand_aside([Blocker(found, remedy())])
        return

    @wraps(stock_getter)
    def get_builder_cls() -> Any:
        return choose(stock_getter())

    backend.get_builder_cls = staticmethod(get_builder_cls)


def choose(stock: Any) -> Any:
    """Return our builder for upstream's DSA-CP builder, and any other builder as it is."""
    if switched_off() or (stock.__module__, stock.__name__) == (BACKEND_MODULE, PLAIN_BUILDER):
        return stock
    engine = current_engine()
    if stock not in engine.chosen:
        engine.chosen[stock] = _ours(stock, engine)
    return engine.chosen[stock]


def _ours(stock: Any, engine: Engine) -> Any:
    try:
        reasons = list(_reasons(stock))
        made = stock if reasons else _made(stock)
    except Exception as error:  # an unknown framework may fail; it must run as without us
        reasons, made = [Blocker(f"hooks that cannot be checked ({error!r})", remedy())], stock
    if reasons:
        engine.stand_aside(reasons)
    else:
        logger.info("dsacp builds the metadata of DSA-CP layers in place of %s", stock.__name__)
    return made


def _reasons(stock: Any) -> Iterator[Blocker]:
    if stock.__module__ != BUILDER_MODULE:
        yield Blocker(f"{stock.__name__} of {stock.__module__}, which is not known", remedy())
        return
    yield from missing_hooks(sys.modules[BUILDER_MODULE], importlib.import_module(ROPE_MODULE))
    yield from drafting_hooks(sys.modules.get(PROPOSER_MODULE), sys.modules.get(SPECULATOR_MODULE))


def _made(stock: Any) -> Any:
    from dsacp.vllm.ascend.builder import make_builder_class
    from dsacp.vllm.ascend.host import Host

    dsa_cp, rope = sys.modules[BUILDER_MODULE], sys.modules[ROPE_MODULE]
    return make_builder_class(stock, Host.of(dsa_cp, rope))


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
    """Mark the builders of draft layers, or leave them to the host where groups are several.

    A proposer without one of the attributes marks nothing: its draft steps then stand aside.
    """
    try:
        groups = list(proposer.draft_attn_groups)
        builders = [builder for group in groups for builder in group.metadata_builders]
        blocker = group_blocker(len(groups), proposer.method)
    except (AttributeError, TypeError):
        return
    for builder in builders:
        if hasattr(builder, "dsacp_seen"):
            builder.dsacp_seen = True
            if blocker is not None:
                builder.refuse(blocker)
