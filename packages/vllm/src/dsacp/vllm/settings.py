"""Whether dsacp acts in an engine, and what it does not support. Needs no vLLM to import.

``unsupported`` is the one list: the plug-in of vLLM, the builder in vllm-ascend and
``dsacp doctor`` read it, each for what it knows of an engine.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

ENABLE_VARIABLE = "DSACP_ENABLE"
CONFIG_KEY = "enable_dsa_cp"
_TRUE = frozenset({"1", "true", "yes", "on"})

Framework = Literal["vllm", "vllm-ascend"]
METHODS: dict[Framework, tuple[str, ...]] = {
    "vllm": ("mtp", "deepseek_mtp"),
    "vllm-ascend": ("mtp", "deepseek_mtp", "dspark"),
}
RATIOS = frozenset({0, 1, 4, 128})
"""Compress ratios of DeepSeek-V4's layers; 0 and 1 both stand for window layers."""
MODEL = "serve a DeepSeek-V4 model"


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


@dataclass(frozen=True)
class Asked:
    """What is known of an engine; what is not said is not refused.

    Attributes:
        framework: who serves it.
        speculates: whether it has a speculative configuration.
        method: of speculation.
        draft_tokens: K.
        parallel_drafting: drafts that do not follow one another.
        constant_draft_positions: drafts that all stand at one position.
        parallel: context and pipeline parallel sizes by vLLM's names.
        ubatching: dual batch overlap.
        model: values of the model's ``config.json``, None where the model is not known.
    """

    framework: Framework = "vllm"
    speculates: bool = True
    method: str | None = "mtp"
    draft_tokens: int = 1
    parallel_drafting: bool = False
    constant_draft_positions: bool = False
    parallel: Mapping[str, int] = field(default_factory=dict)
    ubatching: bool = False
    model: Mapping[str, Any] | None = None


PARALLEL = {
    "prefill_context_parallel_size": "prefill context parallelism",
    "decode_context_parallel_size": "decode context parallelism",
    "pipeline_parallel_size": "pipeline parallelism",
}


def unsupported(asked: Asked) -> Iterator[Blocker]:
    """Yield everything about an engine that dsacp does not support, all of it."""
    yield from _speculation(asked)
    for name, feature in PARALLEL.items():
        if (size := asked.parallel.get(name, 1)) > 1:
            yield Blocker(f"{feature} of {size} ({name})", "set it to 1 beside DSA-CP")
    if asked.ubatching:
        yield Blocker("ubatching", "switch dual batch overlap off")
    if asked.model is not None:
        yield from model_blockers(asked.model)


def _speculation(asked: Asked) -> Iterator[Blocker]:
    if not asked.speculates:
        # vllm-ascend's target has metadata of ours without any draft layer
        if asked.framework == "vllm":
            yield Blocker("no speculative_config", "start with method 'mtp' to have draft layers")
        return
    methods = METHODS[asked.framework]
    if asked.method not in methods:
        names = " or ".join(repr(name) for name in methods if name != "deepseek_mtp")
        yield Blocker(f"speculative method {asked.method!r}", f"use method {names}")
    if not asked.draft_tokens:
        yield Blocker("no draft tokens", "set num_speculative_tokens to 1 or more")
    if asked.parallel_drafting and asked.method != "dspark":
        yield Blocker("parallel_drafting", "switch it off: drafts must follow one another")
    if asked.constant_draft_positions:
        yield Blocker("constant_draft_positions", "switch it off: draft positions must advance")


def model_blockers(model: Mapping[str, Any]) -> Iterator[Blocker]:
    """Yield what keeps a model out: no DeepSeek-V4, or one without the layers that we serve."""
    ratios = model.get("compress_ratios")
    kind = model.get("model_type")
    named = f" of type {kind!r}" if kind else ""
    if ratios is None:
        yield Blocker(f"a model{named} without compress_ratios", MODEL)
    elif not isinstance(ratios, Sequence) or isinstance(ratios, str) or not ratios:
        yield Blocker(f"compress_ratios {ratios!r}, no list of numbers", MODEL)
    elif unknown := [ratio for ratio in dict.fromkeys(ratios) if ratio not in RATIOS]:
        known = ", ".join(map(str, sorted(RATIOS)))
        shown = ", ".join(map(str, unknown))
        yield Blocker(f"compress_ratios of {shown} (known: {known})", MODEL)
    layers = model.get("num_nextn_predict_layers")
    if layers is not None and not (isinstance(layers, int) and layers > 0):
        yield Blocker(
            f"num_nextn_predict_layers of {layers!r}, so no draft layer",
            "serve a checkpoint with its MTP layer",
        )


MODEL_KEYS = ("compress_ratios", "num_nextn_predict_layers", "model_type")


def asked_of(vllm_config: object, framework: Framework = "vllm") -> Asked:
    """Read what an engine is asked for from vLLM's configuration."""
    speculative = getattr(vllm_config, "speculative_config", None)
    parallel = getattr(vllm_config, "parallel_config", None)
    hf_config = getattr(getattr(vllm_config, "model_config", None), "hf_config", None)
    return Asked(
        framework=framework,
        speculates=speculative is not None,
        method=getattr(speculative, "method", None),
        draft_tokens=getattr(speculative, "num_speculative_tokens", None) or 0,
        parallel_drafting=bool(getattr(speculative, "parallel_drafting", False)),
        constant_draft_positions=bool(getattr(speculative, "constant_draft_positions", False)),
        parallel={name: getattr(parallel, name, None) or 1 for name in PARALLEL},
        ubatching=bool(getattr(parallel, "use_ubatching", False)),
        model={key: getattr(hf_config, key, None) for key in MODEL_KEYS},
    )


def blockers(vllm_config: object) -> Iterator[Blocker]:
    """Yield every feature of a vLLM engine that dsacp does not support beside it."""
    yield from unsupported(asked_of(vllm_config))
