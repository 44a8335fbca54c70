"""Whether we act in a vllm-ascend engine; upstream's own switch decides first."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

from dsacp.vllm.settings import ENABLE_VARIABLE, Blocker

_FALSE = frozenset({"0", "false", "no", "off"})
METHODS = ("mtp", "deepseek_mtp", "dspark")


def switched_off(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether ``DSACP_ENABLE=0`` keeps upstream's builder; the way back in one variable.

    Installing dsacp is enough to use it where ``enable_dsa_cp`` is on.
    """
    return environ.get(ENABLE_VARIABLE, "").lower() in _FALSE


def ascend_blockers(vllm_config: Any) -> Iterator[Blocker]:
    """Yield every feature of an engine that our builder does not support beside it."""
    parallel = vllm_config.parallel_config
    for name, feature in (
        ("prefill_context_parallel_size", "prefill context parallelism"),
        ("decode_context_parallel_size", "decode context parallelism"),
        ("pipeline_parallel_size", "pipeline parallelism"),
    ):
        size = getattr(parallel, name, 1) or 1
        if size > 1:
            yield Blocker(f"{feature} of {size} ({name})", "set it to 1 beside DSA-CP")
    if getattr(parallel, "use_ubatching", False):
        yield Blocker("ubatching", "switch dual batch overlap off")
    speculative = getattr(vllm_config, "speculative_config", None)
    method = getattr(speculative, "method", None)
    if speculative is None:
        return
    if method not in METHODS:
        yield Blocker(f"speculative method {method!r}", "use one of " + ", ".join(METHODS))
    if method != "dspark" and getattr(speculative, "parallel_drafting", False):
        yield Blocker("parallel_drafting", "switch it off: drafts must follow one another")
    if getattr(speculative, "constant_draft_positions", False):
        yield Blocker("constant_draft_positions", "switch it off: draft positions must advance")


def group_blocker(groups: int, method: str | None) -> Blocker | None:
    """Return why draft steps are left to the host when layers lie in several KV groups.

    vllm-ascend's proposer advances positions once a group instead of once a step and gives every
    layer the last group's metadata (spec ascend 4.3). DSpark has no later steps.
    """
    if groups <= 1 or method == "dspark":
        return None
    return Blocker(f"{groups} draft attention groups", "serve a model whose draft layers share one")


def unseen_blocker(what: str) -> Blocker:
    """Return why a step is left to the host when nobody was seen to hold its builder.

    The proposer and the speculator are known by their methods and attributes. One that has changed
    would give us draft steps whose rhythm nobody has checked.

    Args:
        what: the step, for the line.
    """
    return Blocker(
        f"{what} from a proposer or speculator that is not like the known ones",
        "use vllm-ascend 0.25.1rc1 or 0.26.0rc1, or a dsacp that knows this one",
    )
