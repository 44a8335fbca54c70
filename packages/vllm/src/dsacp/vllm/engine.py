"""Runs the real engine on the tiny model, one forked process a scenario.

The parent imports vLLM once; every engine starts from that image and leaves nothing behind.
"""

import json
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from dsacp.vllm.processes import ends_with_us, lead_group
from dsacp.vllm.report import read_reports
from dsacp.vllm.scenario import Outcome, Scenario, engine_options, environment, make_prompts


def answer(scenario: Scenario, folder: Path) -> Outcome:
    """Start the engine in this process, generate greedily, and collect what happened."""
    reports = folder / "reports"
    os.environ.update(environment(scenario, reports))
    # a fork inherits its parent's thread pool without the threads
    torch.set_num_threads(1)
    from dsacp.vllm_cpu_kit import VOCAB, write_model
    from vllm import LLM, SamplingParams

    start = time.monotonic()
    llm = LLM(**engine_options(scenario, write_model(folder / "model", tokenizer=False)))
    ready = time.monotonic()
    sampling = SamplingParams(
        temperature=0, max_tokens=scenario.max_tokens, ignore_eos=True, detokenize=False
    )
    outputs = llm.generate(make_prompts(scenario, VOCAB), sampling, use_tqdm=False)
    done = time.monotonic()
    metrics = {metric.name: metric for metric in llm.get_metrics()}
    drafts = metrics.get("vllm:spec_decode_num_drafts")
    accepted = metrics.get("vllm:spec_decode_num_accepted_tokens_per_pos")
    return Outcome(
        tokens=[list(output.outputs[0].token_ids) for output in outputs],
        drafts=int(drafts.value) if drafts else 0,
        accepted=[int(value) for value in accepted.values] if accepted else [],
        cached_tokens=sum(output.num_cached_tokens or 0 for output in outputs),
        reports=read_reports(reports),
        start_s=round(ready - start, 1),
        generate_s=round(done - ready, 1),
    )


def _child(scenario: Scenario, folder: Path, before: Callable[[], None] | None) -> None:
    code = 1
    lead_group()
    try:
        if scenario.v2:
            _interpret_triton(folder)
        _fork_workers()
        if before is not None:
            before()
        (folder / "outcome.json").write_text(json.dumps(asdict(answer(scenario, folder))))
        code = 0
    except BaseException:
        (folder / "error.txt").write_text(traceback.format_exc())
    # engine threads would keep the process alive
    os._exit(code)


def _interpret_triton(folder: Path) -> None:
    """Give this process and its children Triton's interpreter; V2 asks for a Triton."""
    from dsacp.vllm_cpu_kit.interpreter import child_environment, enable

    os.environ.update(child_environment(folder / "startup"))
    enable()


def _fork_workers() -> None:
    """Start cores and workers from this process's image: a spawned one imports vLLM again."""
    from vllm.platforms.cpu import CpuPlatform

    stock = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        stock(cls, vllm_config)
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"  # the platform has set spawn

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)


def _wait(process: Any, timeout_s: float) -> None:
    """Wait for a process itself: ``join`` waits for all that inherited its pipe, cores too."""
    deadline = time.monotonic() + timeout_s
    while process.is_alive():
        if time.monotonic() > deadline:
            raise RuntimeError(f"the engine gave no answer in {timeout_s} s")
        time.sleep(0.05)


def run_forked(
    scenario: Scenario, *, before: Callable[[], None] | None = None, timeout_s: float = 900
) -> Outcome:
    """Run a scenario in a fork of this process; ``before`` runs there first.

    A V2 scenario runs in a fresh process, so its ``before`` must be importable.

    Raises:
        RuntimeError: the engine failed; the message holds its traceback.
    """
    if not scenario.v2:
        import vllm  # noqa: F401 - once in the parent, so that no child pays for it

    with tempfile.TemporaryDirectory(prefix="dsacp-") as name:
        folder = Path(name)
        # Triton decides at its first import whether it interprets: V2 starts from nothing
        start: Any = multiprocessing.get_context("spawn" if scenario.v2 else "fork")
        process = start.Process(target=_child, args=(scenario, folder, before))
        process.start()
        with ends_with_us(process.pid):
            _wait(process, timeout_s)
        if process.exitcode != 0:
            error = folder / "error.txt"
            text = error.read_text() if error.exists() else f"exit code {process.exitcode}"
            raise RuntimeError(f"the engine failed for {scenario}:\n{text}")
        return Outcome(**json.loads((folder / "outcome.json").read_text()))
