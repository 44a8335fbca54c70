"""Serves a seeded load on the real engine, request by request, and records it as a trace.

``python -m dsacp.vllm.record FILE`` in the vLLM environment wrote the trace that
``dsacp replay`` uses by default: arrivals are those that the engine's scheduler saw.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dsacp.core import DsacpError, check_output
from dsacp.vllm.recorder import TRACE_VARIABLE, keep_trace
from dsacp.vllm.scenario import Scenario, engine_options, environment


@dataclass(frozen=True)
class Load:
    """One request of the load: when it is sent, and its lengths."""

    at_s: float
    input_length: int
    output_length: int


def seeded_load(requests: int, seed: int, mean_gap_s: float) -> list[Load]:
    """Draw random arrivals; one prompt in four is longer than the model's window of 64."""
    draw, now, load = random.Random(seed), 0.0, []
    for _ in range(requests):
        long = draw.random() < 0.25
        prompt = draw.randrange(65, 300) if long else draw.randrange(3, 64)
        load.append(Load(now, prompt, draw.randrange(4, 72)))
        now += draw.expovariate(1 / mean_gap_s)
    return load


def serve(engine: Any, load: Sequence[Load], vocab: int, seed: int) -> None:
    """Feed the load to an engine as its time comes, and step the engine until all is answered."""
    from vllm import SamplingParams

    draw, start, waiting = random.Random(seed), time.monotonic(), list(enumerate(load))
    while waiting or engine.has_unfinished_requests():
        while waiting and waiting[0][1].at_s <= time.monotonic() - start:
            index, request = waiting.pop(0)
            prompt = [draw.randrange(3, vocab) for _ in range(request.input_length)]
            sampling = SamplingParams(
                temperature=0, max_tokens=request.output_length, ignore_eos=True, detokenize=False
            )
            engine.add_request(str(index), {"prompt_token_ids": prompt}, sampling)
        if engine.has_unfinished_requests():
            engine.step()
        else:
            time.sleep(0.001)


def main(argv: Sequence[str] | None = None) -> int:
    """Record one run; returns 2 if the file cannot be written, 1 if nothing was recorded."""
    parser = argparse.ArgumentParser(prog="python -m dsacp.vllm.record", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mean-gap-s", type=float, default=0.4)
    options = parser.parse_args(argv)
    try:
        check_output("FILE", options.file)
    except DsacpError as error:
        print(error, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="dsacp-") as name:
        part = Path(name) / "trace.jsonl"
        _run(options, Path(name), part)
        try:
            keep_trace(part, options.file)
        except (DsacpError, OSError) as error:
            print(error, file=sys.stderr)
            return 1
    return 0


def _run(options: argparse.Namespace, folder: Path, trace: Path) -> None:
    scenario = replace(Scenario(), draft_tokens=3, dsacp=True, guard=False)
    os.environ.update(environment(scenario, folder / "reports"))
    os.environ[TRACE_VARIABLE] = str(trace)
    from dsacp.vllm_cpu_kit import VOCAB, write_model
    from vllm import LLM

    llm = LLM(**engine_options(scenario, write_model(folder / "model", tokenizer=False)))
    load = seeded_load(options.requests, options.seed, options.mean_gap_s)
    serve(llm.llm_engine, load, VOCAB, options.seed)


if __name__ == "__main__":
    sys.exit(main())
