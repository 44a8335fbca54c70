"""``dsacp serve-demo``: the real engine with and without MTP and DSA-CP, side by side."""

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from dsacp.core import DsacpError, check_output
from dsacp.vllm.engine import run_forked
from dsacp.vllm.recorder import TRACE_VARIABLE, keep_trace
from dsacp.vllm.scenario import PROMPT_LENGTHS, Outcome, Scenario


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="dsacp serve-demo", description=__doc__)
    parser.add_argument("--tp", type=int, default=1, help="tensor-parallel size (2 cores: 1 or 2)")
    parser.add_argument("--draft-tokens", type=int, default=3, help="K of MTP")
    parser.add_argument("--requests", type=int, default=4, help="prompts to serve, 1 to 6")
    parser.add_argument("--max-tokens", type=int, default=24, help="tokens to generate a request")
    parser.add_argument("--v2", action="store_true", help="vLLM's V2 model runner (needs Triton)")
    parser.add_argument("--trace", type=Path, help="record the served requests for `dsacp replay`")
    parser.add_argument("--verbose", action="store_true", help="show the engine's own log")
    return parser.parse_args(argv)


def scenarios(options: argparse.Namespace) -> dict[str, Scenario]:
    """Return the engines to compare, the plain one first."""
    plain = Scenario(
        tp=options.tp,
        v2=options.v2,
        prompts=PROMPT_LENGTHS[: options.requests],
        max_tokens=options.max_tokens,
    )
    drafting = replace(plain, draft_tokens=options.draft_tokens)
    traced = {TRACE_VARIABLE: str(options.trace.resolve())} if options.trace else {}
    return {
        "no speculation": plain,
        f"MTP={options.draft_tokens}": drafting,
        f"MTP={options.draft_tokens} + DSA-CP": replace(drafting, dsacp=True, environment=traced),
    }


def describe(name: str, outcome: Outcome, plain: Outcome) -> str:
    """One line a person can read: equal or not, acceptance by position, time."""
    equal = sum(a == b for a, b in zip(outcome.tokens, plain.tokens, strict=True))
    parts = [f"{name:18} tokens equal {equal} of {len(plain.tokens)}"]
    if outcome.drafts:
        rates = "  ".join(f"{count / outcome.drafts:4.0%}" for count in outcome.accepted)
        parts.append(f"accepted by position {rates} of {outcome.drafts} drafts")
    parts.append(f"{outcome.generate_s:.1f} s")
    return " | ".join(parts)


def explain(outcome: Outcome) -> Iterator[str]:
    """Say what our builders did, instance by instance."""
    for report in outcome.reports:
        calls = ", ".join(f"{name} x{count}" for name, count in sorted(report["calls"].items()))
        guarded = report["guarded"]
        layers = ", ".join(report["layers"])
        yield f"  process {report['pid']} ({report['runner']} runner), {layers}"
        yield f"    {calls}"
        if guarded:
            yield (
                f"    guard: {guarded['builds']} builds, {guarded['addresses']} addresses, "
                f"{guarded['padding_rows']} padding rows: {len(report['violations'])} violations"
            )
        yield from (f"    {line}" for line in report["violations"][:5])


@contextlib.contextmanager
def _quiet(quiet: bool) -> Iterator[None]:
    """Send this process's and the engines' output to nowhere, file descriptors included."""
    if not quiet:
        yield
        return
    sys.stdout.flush()
    kept = [os.dup(1), os.dup(2)]
    with Path(os.devnull).open("w") as nowhere:
        for number in (1, 2):
            os.dup2(nowhere.fileno(), number)
        try:
            yield
        finally:
            for number, saved in zip((1, 2), kept, strict=True):
                os.dup2(saved, number)
                os.close(saved)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; returns 0 if every engine gave the same tokens and the guard is content."""
    options = _arguments(argv)
    if find_spec("vllm") is None:
        print("serve-demo needs vLLM in this environment, found none: run `nox -s serve_demo`")
        return 2
    try:
        check_output("--trace", options.trace)
        with tempfile.TemporaryDirectory(prefix="dsacp-") as folder:
            return _compare(options, Path(folder) / "trace.jsonl")
    except DsacpError as error:
        print(error, file=sys.stderr)
        return 2


def _compare(options: argparse.Namespace, part: Path) -> int:
    """Run every engine, and tell what differs; a trace is recorded to ``part`` first."""
    outcomes: dict[str, Outcome] = {}
    recorded = argparse.Namespace(**{**vars(options), "trace": options.trace and part})
    for name, scenario in scenarios(recorded).items():
        print(f"starting vLLM: {name}, TP={scenario.tp} ...", flush=True)
        with _quiet(not options.verbose):
            outcomes[name] = run_forked(scenario)
    plain, *_, ours = outcomes.values()
    for name, outcome in outcomes.items():
        print(describe(name, outcome, plain))
    print("our builders:")
    print("\n".join(explain(ours)))
    if options.trace:
        keep_trace(part, options.trace)
        print(f"trace written: dsacp replay --trace {options.trace}")
    same = all(outcome.tokens == plain.tokens for outcome in outcomes.values())
    called = any(report["calls"] for report in ours.reports)
    print(
        "same tokens" if same else "DIFFERENT TOKENS",
        "| builder called" if called else "| NOT CALLED",
    )
    return 0 if same and called and not ours.violations else 1


if __name__ == "__main__":
    sys.exit(main())
