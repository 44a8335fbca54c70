"""What an engine is asked, what it answered, and the settings that a CPU engine needs."""

import os
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsacp.vllm.report import GUARD_VARIABLE, REPORT_VARIABLE

PROMPT_LENGTHS = (5, 70, 150, 300, 17, 33)
"""Below and above the window of 64, and not multiples of anything."""


@dataclass(frozen=True)
class Scenario:
    """One engine and what it is asked.

    Attributes:
        draft_tokens: K of MTP, 0 for none.
        dsacp: whether the plug-in acts.
        tp: tensor-parallel size.
        v2: vLLM's V2 model runner (needs Triton or its interpreter).
        prompts: prompt lengths; token ids are drawn from ``seed``.
        shared_prefix: leading tokens that prompts of at least this length have in common.
        max_tokens: tokens to generate a request.
        guard: whether our builders check themselves after every build.
        options: further keyword arguments of ``vllm.LLM``.
        environment: further environment variables.
    """

    draft_tokens: int = 0
    dsacp: bool = False
    tp: int = 1
    v2: bool = False
    prompts: Sequence[int] = PROMPT_LENGTHS
    shared_prefix: int = 0
    max_tokens: int = 40
    seed: int = 0
    guard: bool = True
    options: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)


CROWDED = Scenario(
    prompts=(5, 70, 150, 33, 17, 64, 41),
    options={"max_num_seqs": 4, "max_model_len": 176, "max_num_batched_tokens": 176},
)
"""Seven requests on four places join and leave; the second prompt outgrows the window of 64, the
third reaches ``max_model_len`` after 26 tokens, the six others generate 40 each."""


@dataclass(frozen=True)
class Outcome:
    """What an engine answered.

    Attributes:
        tokens: generated ids a request.
        drafts: draft rounds.
        accepted: accepted draft tokens by position.
        cached_tokens: prompt tokens that the prefix cache answered.
        reports: what each of our builders did, from every process.
        start_s: seconds to a ready engine.
        generate_s: seconds to all answers.
    """

    tokens: list[list[int]]
    drafts: int
    accepted: list[int]
    cached_tokens: int
    reports: list[dict[str, Any]]
    start_s: float
    generate_s: float

    @property
    def violations(self) -> list[str]:
        """Everything that the guard objected to."""
        return [line for report in self.reports for line in report["violations"]]

    def calls(self) -> dict[str, int]:
        """Sum our builders' calls over processes and instances."""
        return self._sum("calls")

    def guarded(self) -> dict[str, int]:
        """Sum what the guard looked at over processes and instances."""
        return self._sum("guarded")

    def attention(self) -> dict[str, int]:
        """Sum the layers' sharded forward passes and all-to-alls that the reports hold."""
        return self._sum("attention")

    def _sum(self, what: str) -> dict[str, int]:
        total: Counter[str] = Counter()
        for report in self.reports:
            total.update(report[what])
        return dict(total)


def environment(scenario: Scenario, reports: Path) -> dict[str, str]:
    """Return the variables that a CPU engine of this scenario needs."""
    values = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind"
        if scenario.tp == 1
        else "|".join(str(index % (os.cpu_count() or 1)) for index in range(scenario.tp)),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if scenario.tp == 1 else "1",
        "VLLM_USE_V2_MODEL_RUNNER": "1" if scenario.v2 else "0",
        "VLLM_NO_USAGE_STATS": "1",
        # matrices this small wait for threads more than they gain from them
        "OMP_NUM_THREADS": "1",
        REPORT_VARIABLE: str(reports),
        GUARD_VARIABLE: "1" if scenario.guard else "0",
    }
    return {**values, **scenario.environment}


def make_prompts(scenario: Scenario, vocab: int) -> list[dict[str, list[int]]]:
    """Draw the prompts' token ids, special ids left out."""
    draw = random.Random(scenario.seed)
    shared = [draw.randrange(3, vocab) for _ in range(scenario.shared_prefix)]
    prompts = []
    for length in scenario.prompts:
        head = shared if length >= len(shared) else []
        tail = [draw.randrange(3, vocab) for _ in range(length - len(head))]
        prompts.append({"prompt_token_ids": head + tail})
    return prompts


def engine_options(scenario: Scenario, model: Path) -> dict[str, Any]:
    """Return the keyword arguments of ``vllm.LLM``."""
    options: dict[str, Any] = {
        "model": str(model),
        "skip_tokenizer_init": True,
        "load_format": "dsacp_seeded",
        "dtype": "bfloat16",
        "enforce_eager": True,
        "max_model_len": 512,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 512,
        "enable_prefix_caching": False,
        "disable_log_stats": False,
        "tensor_parallel_size": scenario.tp,
        "additional_config": {"enable_dsa_cp": scenario.dsacp},
    }
    if scenario.draft_tokens:
        options["speculative_config"] = {
            "method": "mtp",
            "num_speculative_tokens": scenario.draft_tokens,
        }
    return {**options, **scenario.options}
