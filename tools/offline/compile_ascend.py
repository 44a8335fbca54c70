"""Compile every kernel to HIVM for Ascend NPUs, and hold its scalar loops to a budget.

Run: python tools/offline/compile_ascend.py [--update] [--skip KERNEL ...] [--arch ARCH ...]
The budget in `hivm_budget.json` may only fall; `--update` lowers it to what was counted.
This proves that kernels compile, not that they run: no NPU and no CANN is involved.
"""

import argparse
import json
import multiprocessing
import sys
from pathlib import Path

from ascend import Hivm, compile_launch
from cases import CASES
from launches import Launch, record

ARCHS = ("Ascend910B3", "Ascend910_9391")
BUDGET = Path(__file__).with_name("hivm_budget.json")


LAUNCHES: dict[str, list[Launch]] = {}
DONE: list[tuple[Launch, str, Hivm]] = []


def _compile(case: str, index: int, arch: str) -> Hivm:
    return compile_launch(LAUNCHES[case][index], arch)


def isolated(case: str, index: int, arch: str) -> Hivm:
    """Compile in a process of its own: an assertion of MLIR ends the whole interpreter.

    The launches were recorded before, because torch's threads do not survive a fork. Equal ones are
    compiled once: some take minutes.
    """
    launch = LAUNCHES[case][index]
    for known, target, result in DONE:
        if known == launch and target == arch:
            return result
    with multiprocessing.get_context("fork").Pool(1) as pool:
        try:
            result = pool.apply_async(_compile, (case, index, arch)).get(timeout=1200)
        except multiprocessing.TimeoutError:
            result = Hivm("none", "the compiler process died or hung")
    DONE.append((launch, arch, result))
    return result


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
    LAUNCHES.update({case: record(call, "npu") for case, call in CASES.items()})
    for case, launches in LAUNCHES.items():
        for index, launch in enumerate(launches):
            label = f"{case}/{index}/{launch.name}"
            for arch in options.arch if launch.name not in options.skip else ():
                result = isolated(case, index, arch)
                counted[label] = max(counted.get(label, 0), result.scalar_loops)
                allowed = budget.get(label)
                over = allowed is None or result.scalar_loops > allowed
                bad = result.stage != "hivm" or result.inline_asm
                bad |= over and not options.update
                failures += bad
                print(
                    f"{'FAIL' if bad else 'ok  '} {arch} {label}: {result.stage}, "
                    f"{result.scalar_loops} scalar loops (budget {allowed}), "
                    f"{result.scalar_loads} scalar loads {result.error[-400:]}",
                    flush=True,
                )
    if options.update and not failures:
        lowered = {name: min(count, budget.get(name, count)) for name, count in counted.items()}
        lowered = dict(sorted((budget | lowered).items()))
        BUDGET.write_text(json.dumps(lowered, indent=1) + "\n")
    print(f"{len(counted) * len(options.arch) - failures} passed, {failures} failed")
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
