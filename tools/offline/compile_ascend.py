"""Compile every kernel to HIVM for Ascend NPUs, and hold its scalar loops to a budget.

Run: python tools/offline/compile_ascend.py [--update] [--skip KERNEL ...] [--arch ARCH ...]
The budget in `hivm_budget.json` may only fall; `--update` lowers it to what was counted.
This proves that kernels compile, not that they run: no NPU and no CANN is involved.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ascend import Hivm
from cases import CASES, NPU_CASES
from isolated import Job, compile_jobs
from launches import folder_of, record

ARCHS = ("Ascend910B3", "Ascend910_9391")
BUDGET = Path(__file__).with_name("hivm_budget.json")


def main() -> int:
    """Print a line a kernel and architecture; return 1 if one fails or exceeds its budget."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--skip", nargs="*", default=[])
    parser.add_argument("--arch", nargs="*", default=ARCHS)
    options = parser.parse_args()
    budget: dict[str, int] = json.loads(BUDGET.read_text()) if BUDGET.exists() else {}
    counted: dict[str, int] = {}
    failures = 0
    jobs, labels = _jobs(options.arch, options.skip)

    def report(job: Job, result: Hivm) -> None:
        nonlocal failures
        for label in labels[jobs.index(job)]:
            counted[label] = max(counted.get(label, 0), result.scalar_loops)
            failures += _print(label, job[1], result, budget.get(label), options.update)

    compile_jobs(jobs, len(os.sched_getaffinity(0)), report)
    if options.update and not failures:
        lowered = {name: min(count, budget.get(name, count)) for name, count in counted.items()}
        lowered = dict(sorted((budget | lowered).items()))
        BUDGET.write_text(json.dumps(lowered, indent=1) + "\n")
    print(f"{len(counted) * len(options.arch) - failures} passed, {failures} failed")
    return min(failures, 1)


def _jobs(archs: Sequence[str], skip: Sequence[str]) -> tuple[list[Job], list[list[str]]]:
    """Record every case; equal launches are one job of several labels, as some take minutes."""
    jobs: list[Job] = []
    labels: list[list[str]] = []
    for case, call in (CASES | NPU_CASES).items():
        for index, launch in enumerate(record(call, "npu")):
            for arch in archs if folder_of(launch) not in skip else ():
                job = (launch, arch)
                if job not in jobs:
                    jobs.append(job)
                    labels.append([])
                labels[jobs.index(job)].append(f"{case}/{index}/{folder_of(launch)}")
    return jobs, labels


def _print(label: str, arch: str, result: Hivm, allowed: int | None, update: bool) -> bool:
    """Print one result; return whether it failed."""
    over = allowed is None or result.scalar_loops > allowed
    wrong = result.inline_asm or bool(result.faults)
    bad = result.stage != "hivm" or wrong or (over and not update)
    print(
        f"{'FAIL' if bad else 'ok  '} {arch} {label}: {result.stage}, {result.scalar_loops} scalar "
        f"loops (budget {allowed}), {result.scalar_loads} scalar loads {result.error[-400:]}"
        + "".join(f"\n     {fault}" for fault in result.faults),
        flush=True,
    )
    return bad


if __name__ == "__main__":
    sys.exit(main())
