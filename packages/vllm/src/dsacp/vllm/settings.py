"""Whether dsacp acts in an engine, and what makes it stand aside. Needs no vLLM to import."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

ENABLE_VARIABLE = "DSACP_ENABLE"
CONFIG_KEY = "enable_dsa_cp"
_TRUE = frozenset({"1", "true", "yes", "on"})


def requested(additional_config: object, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the user switched dsacp on; it is off by default.

    ``--additional-config '{"enable_dsa_cp": true}'`` decides if the key is there, in either
    direction; otherwise ``DSACP_ENABLE=1`` does.
    """
    if isinstance(additional_config, Mapping) and CONFIG_KEY in additional_config:
        value = additional_config[CONFIG_KEY]
        return value.lower() in _TRUE if isinstance(value, str) else bool(value)
    return environ.get(ENABLE_VARIABLE, "").lower() in _TRUE


@dataclass(frozen=True)
class Blocker:
    """One reason to stand aside: what was found, and what the user can do."""

    found: str
    remedy: str

    def __str__(self) -> str:
        return f"found {self.found}; {self.remedy}"


def _get(config: object, path: str, default: Any) -> Any:
    value: Any = config
    for name in path.split("."):
        value = getattr(value, name, None)
        if value is None:
            return default
    return value


def blockers(vllm_config: object) -> Iterator[Blocker]:
    """Yield every feature of an engine that dsacp does not support beside it."""
    speculative = getattr(vllm_config, "speculative_config", None)
    if speculative is None:
        yield Blocker("no speculative_config", "start with method 'mtp' to have draft layers")
        return
    method = getattr(speculative, "method", None)
    if method not in ("mtp", "deepseek_mtp"):
        yield Blocker(f"speculative method {method!r}", "use method 'mtp'")
    if not _get(speculative, "num_speculative_tokens", 0):
        yield Blocker("no draft tokens", "set num_speculative_tokens to 1 or more")
    if _get(speculative, "parallel_drafting", False):
        yield Blocker("parallel_drafting", "switch it off: drafts must follow one another")
    if _get(speculative, "constant_draft_positions", False):
        yield Blocker("constant_draft_positions", "switch it off: draft positions must advance")
    for name, flag in (
        ("prefill_context_parallel_size", "prefill context parallelism"),
        ("decode_context_parallel_size", "decode context parallelism"),
        ("pipeline_parallel_size", "pipeline parallelism"),
    ):
        size = _get(vllm_config, f"parallel_config.{name}", 1)
        if size > 1:
            yield Blocker(f"{flag} of {size} ({name})", "set it to 1 beside DSA-CP")
    if _get(vllm_config, "parallel_config.use_ubatching", False):
        yield Blocker("ubatching", "switch dual batch overlap off")
    ratios = _get(vllm_config, "model_config.hf_config.compress_ratios", None)
    if ratios is None:
        yield Blocker("a model without compress_ratios", "serve a DeepSeek-V4 model")
