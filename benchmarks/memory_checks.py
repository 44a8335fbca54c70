"""Run the kernels' device tests under compute-sanitizer's memcheck and racecheck, side by side.

Run: python benchmarks/memory_checks.py [--logs FOLDER] [--skip WORD ...]
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TOOLS = ("memcheck", "racecheck")
TESTS = Path(__file__).parents[1] / "packages/kernels/tests/triton"
FAULT = 9
NO_TESTS = 5
"""pytest's exit code where a whole file skips itself, as what only the interpreter shows does."""


def start(tool: str, tests: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start one tool over one test file; it ends with ``FAULT`` where the tool found something."""
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", str(FAULT)]
    command += [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)]
    with log.open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)


def main() -> int:
    """Print a row a tool and test file; return 1 unless all are clean."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--logs", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--skip", nargs="*", default=[], help="parts of test files' names")
    options = parser.parse_args()
    files = [
        path
        for path in sorted(TESTS.glob("test_*.py"))
        if not any(word in path.stem for word in options.skip)
    ]
    began, running = time.monotonic(), {}
    for tool in TOOLS:
        for path in files:
            log = options.logs / f"{tool}_{path.stem}.txt"
            running[tool, path.stem] = start(tool, path, log), log
    clean = True
    for (tool, name), (process, log) in running.items():
        code = process.wait()
        clean &= code in {0, NO_TESTS}
        lines = log.read_text(errors="replace").splitlines()
        found = [line for line in lines if "SUMMARY" in line or " passed" in line]
        seconds = time.monotonic() - began
        print(f"{tool:9} {name}: exit {code}, {'; '.join(found)} ({seconds:.0f} s)", flush=True)
    return int(not clean)


if __name__ == "__main__":
    sys.exit(main())
