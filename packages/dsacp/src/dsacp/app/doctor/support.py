"""What dsacp does not support of a serving configuration: the plug-in's own list, read here too."""

import importlib
import importlib.util
from collections.abc import Iterator, Mapping

from dsacp.app.doctor.machine import Finding
from dsacp.app.doctor.serving import Serving, bounds
from dsacp.core import DsacpError, install_hint

LENGTH = 4096
"""Longest request to try where none is said."""


def support_findings(serving: Serving, packages: Mapping[str, str]) -> Iterator[Finding]:
    """Say why the plug-in would stand aside, model and sizes included.

    Args:
        serving: the configuration.
        packages: see ``doctor_host.installed``.
    """
    if importlib.util.find_spec("dsacp.vllm") is None:
        hint = install_hint("dsacp-vllm")
        yield Finding("note", f"what the plug-in supports is checked where it is installed: {hint}")
        return
    if serving.model is None:
        yield Finding("note", "the model was not checked: say which (--model-config)")
    settings = importlib.import_module("dsacp.vllm.settings")
    asked = settings.Asked(
        framework="vllm" if "vllm" in packages and "vllm-ascend" not in packages else "vllm-ascend",
        method="dspark" if serving.dspark else "mtp",
        draft_tokens=serving.draft_tokens,
        model=serving.model,
    )
    reasons = [*settings.unsupported(asked), *_sizes(serving)]
    for reason in reasons:
        yield Finding("problem", f"dsacp would stand aside: {reason}")


def _sizes(serving: Serving) -> Iterator[object]:
    try:
        bounds(serving, serving.usable)
    except DsacpError:
        return  # said where the capacity is
    steps = importlib.import_module("dsacp.vllm.steps")
    sizes = importlib.import_module("dsacp.vllm.dry_run").Sizes(
        serving.max_num_seqs,
        max(serving.max_num_batched_tokens, serving.draft_tokens + 1),
        serving.draft_tokens,
        serving.tp,
        serving.max_model_len or LENGTH,
        tuple(sorted(serving.usable)),
    )
    yield from steps.size_blockers(sizes)
