"""Whether we act in a vllm-ascend engine; upstream's own switch decides first."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from dsacp.vllm.settings import ENABLE_VARIABLE, Blocker, asked_of, unsupported

_FALSE = frozenset({"0", "false", "no", "off"})
KNOWN = ("0.25.1rc1", "0.26.0rc1")
"""The versions of vllm-ascend that every check was written against."""


def remedy() -> str:
    """Return what helps where the installed vllm-ascend is not what our builder was made for."""
    known = " or ".join(KNOWN)
    try:
        found = version("vllm-ascend")
    except PackageNotFoundError:
        return f"install vllm-ascend {known}"
    if found in KNOWN:
        return (
            f"something has changed this vllm-ascend {found}: reinstall it, or start without what "
            "did"
        )
    return f"use vllm-ascend {known}, or a dsacp that knows {found}"


def switched_off(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether ``DSACP_ENABLE=0`` keeps upstream's builder; the way back in one variable.

    Installing dsacp is enough to use it where ``enable_dsa_cp`` is on.
    """
    return environ.get(ENABLE_VARIABLE, "").lower() in _FALSE


def ascend_blockers(vllm_config: Any) -> Iterator[Blocker]:
    """Yield every feature of an engine that our builder does not support beside it.

    The model is vllm-ascend's affair: it has this builder for DeepSeek-V4 alone.
    """
    yield from unsupported(replace(asked_of(vllm_config, "vllm-ascend"), model=None))


def group_blocker(groups: int, method: str | None) -> Blocker | None:
    """Return why draft steps are left to the host when layers lie in several KV groups.

    vllm-ascend's proposer advances positions once a group instead of once a step and gives every
    layer the last group's metadata (upstream U27). DSpark has no later steps.
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
        remedy(),
    )
