"""The ``vllm.general_plugins`` entry point; vLLM calls it in every process, sometimes twice."""

import logging
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

from dsacp.vllm.aside import Engine, engine_of, new_engine
from dsacp.vllm.hooks import remedy, vllm_version
from dsacp.vllm.settings import Blocker, blockers, requested

logger = logging.getLogger("vllm.dsacp")


def missing_hooks() -> list[Blocker]:
    """Check every signature and field that we stand on against the installed vLLM."""
    from dsacp.vllm.contract import check_contract

    return list(check_contract())


def reasons_against(vllm_config: Any, engine: Engine) -> list[Blocker]:
    """Everything that keeps us out of an engine that asks for us: its settings, then its vLLM."""
    reasons = [*blockers(vllm_config), *engine.refused]
    if (error := _attempt(_hook_cache)) is not None:
        reasons.append(Blocker(f"no window metadata to build ({error!r})", remedy()))
    return [*reasons, *missing_hooks(), *missing_operators()]


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
    install()


@cache
def install() -> None:
    """Wrap this process's classes, once however often vLLM calls; nothing of an engine is kept."""
    try:
        if _ascend():
            return
    except Exception as failed:  # nothing that we need of a framework may end it
        logger.warning("dsacp cannot look for vllm-ascend, the engine is unchanged: %r", failed)
    if (error := _attempt(_record)) is not None:
        logger.warning("dsacp records no trace, the engine is unchanged: %r", error)
    _attempt(_hook_cache)  # an engine that asks tries again, and hears why it fails
    if (error := _attempt(_watch)) is not None:
        logger.warning("dsacp cannot watch vLLM's workers, so it may be silent: %r", error)


def _attempt(install: Callable[[], None]) -> Exception | None:
    try:
        install()
    except Exception as error:  # nothing that we need of a host may end it
        return error
    return None


def _ascend() -> bool:
    from dsacp.vllm.ascend import register_ascend

    return register_ascend()


def _record() -> None:
    from dsacp.vllm.recorder import install_recorder

    install_recorder(logger.warning)


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
        engine = new_engine(config)
        drafter = getattr(getattr(worker, "model_runner", None), "drafter", None)
        if getattr(drafter, "constant_draft_positions", False):
            engine.refused.append(
                Blocker("constant_draft_positions", "draft positions must advance")
            )
        if reasons := reasons_against(config, engine):
            engine.stand_aside(reasons, quiet=quiet)
        result = load_model(*args, **kwargs)
        if engine.adopted:
            _find_mark(getattr(worker, "model_runner", None), engine)
        if not reasons and not engine.adopted:
            found = "a model without a window cache in its draft layers"
            engine.stand_aside([Blocker(found, "serve a DeepSeek-V4 model")], quiet=quiet)
        return result

    return load


def _find_mark(runner: Any, engine: Engine) -> None:
    from dsacp.vllm.drafting import find_mark

    try:
        find_mark(runner, engine)
    except Exception as error:  # every request drafts then, as in vLLM itself
        engine.warn_once(f"dsacp cannot tell chunks of unfinished prompts: {error!r}")


def _hook_cache() -> None:
    from vllm.v1.attention.backends.mla import sparse_swa as swa

    stock_init = swa.DeepseekV4SWACache.__init__
    if getattr(stock_init, "dsacp", False):
        return

    @wraps(stock_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        stock_init(self, *args, **kwargs)
        config: Any = None
        try:
            from vllm.config import get_current_vllm_config

            config = get_current_vllm_config()
            adopt(self, config, swa)
        except Exception as error:  # the layer is untouched until nothing can fail any more
            engine = Engine() if config is None else engine_of(config)
            found = f"a layer that cannot be adopted ({error!r})"
            engine.stand_aside([Blocker(found, remedy())])

    init.dsacp = True  # type: ignore[attr-defined]
    swa.DeepseekV4SWACache.__init__ = init


def adopt(cache_layer: Any, vllm_config: Any, swa: Any) -> bool:
    """Give a draft layer's window cache our backend if the engine asks for it."""
    if not requested(getattr(vllm_config, "additional_config", None)):
        return False
    engine = engine_of(vllm_config)
    if reasons := reasons_against(vllm_config, engine):
        engine.stand_aside(reasons)
        return False
    from vllm.model_executor.models.utils import extract_layer_index

    first_draft = vllm_config.model_config.hf_config.num_hidden_layers
    if extract_layer_index(cache_layer.prefix) < first_draft:
        return False
    from dsacp.vllm.builder import make_backend_class, make_builder_class

    stock = cache_layer.backend_cls
    builder = make_builder_class(stock.get_builder_cls(), swa.DeepseekSparseSWAMetadata)
    backend = make_backend_class(stock, builder)
    _shard_attention(engine)
    cache_layer.backend_cls = backend
    cache_layer.dsacp = True
    engine.adopted = True
    logger.info("dsacp builds the metadata of %s (vLLM %s)", cache_layer.prefix, vllm_version())
    return True


def _shard_attention(engine: Engine) -> None:
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        engine.warn_once(
            "dsacp builds the draft layers' metadata; their attention stays head-sharded: no "
            f"token-sharded attention for {current_platform.device_type}, tokens are the same"
        )
        return
    from dsacp.vllm.attention import install_sharded_attention
    from vllm.models.deepseek_v4.cpu.cpu_sparse import DeepseekV4CPUAttention

    install_sharded_attention(DeepseekV4CPUAttention, is_draft_layer)
