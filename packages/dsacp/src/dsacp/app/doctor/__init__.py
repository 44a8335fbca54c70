"""``dsacp doctor``: what host is here, what fits, and what a serving configuration would meet."""

from collections.abc import Sequence

from dsacp.app.doctor.machine import Finding, hook_findings, host_findings, installed
from dsacp.app.doctor.model import read_model
from dsacp.app.doctor.serving import Serving, serving_findings
from dsacp.app.doctor.support import support_findings

__all__ = ["Serving", "examine", "exit_code", "read_model", "report"]

MARKS = {"ok": "ok      ", "note": "note    ", "warning": "warning ", "problem": "PROBLEM "}
HEALTHY, UNHEALTHY = 0, 1


def examine(serving: Serving | None, hooks: bool) -> dict[str, list[Finding]]:
    """Collect the findings by section.

    Args:
        serving: a configuration to examine, None to look at the host alone.
        hooks: whether to import the engine, in a process of its own, and check signatures.
    """
    packages = installed()
    sections = {"host": host_findings(packages, serving=serving is not None)}
    if hooks:
        sections["hooks"] = hook_findings(packages)
    if serving is not None:
        sections["serving"] = [
            *serving_findings(serving, "vllm-ascend" in packages),
            *support_findings(serving, packages),
        ]
    return sections


def report(sections: dict[str, list[Finding]]) -> str:
    """Return the findings as text, one line each."""
    lines = []
    for name, findings in sections.items():
        lines.append(name)
        lines += [f"  {MARKS[finding.level]}{finding.text}" for finding in findings]
    found = [finding for findings in sections.values() for finding in findings]
    counts = {level: _count(found, level) for level in ("problem", "warning")}
    lines.append(f"{counts['problem']} problems, {counts['warning']} warnings")
    return "\n".join(lines)


def exit_code(sections: dict[str, list[Finding]], strict: bool) -> int:
    """Return 1 if a problem was found, or with ``strict`` a warning, else 0."""
    levels = {"problem", "warning"} if strict else {"problem"}
    found = (finding.level for findings in sections.values() for finding in findings)
    return UNHEALTHY if levels.intersection(found) else HEALTHY


def _count(findings: Sequence[Finding], level: str) -> int:
    return sum(1 for finding in findings if finding.level == level)
