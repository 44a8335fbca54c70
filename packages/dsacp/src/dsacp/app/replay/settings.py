"""The settings of a replay, and the limits that follow from them and a trace."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, get_args

from dsacp.app.traces.read import TraceRequest
from dsacp.core import (
    INT32_MAX,
    MAX_TP_SIZE,
    DsacpError,
    LayoutError,
    StepLayout,
    align_capture_sizes,
    check_whole,
    round_up,
)

Drafter = Literal["mtp", "none"]
DeviceName = Literal["cpu", "cuda"]
PaddingName = Literal["dummy", "repeat"]
OverflowName = Literal["reset", "saturate"]

CHOICES = {
    "drafter": get_args(Drafter),
    "device": get_args(DeviceName),
    "layout": get_args(StepLayout),
    "padding": get_args(PaddingName),
    "overflow": get_args(OverflowName),
}
WHOLE = {
    "requests": (1, INT32_MAX),
    "max_num_seqs": (1, INT32_MAX),
    "max_num_batched_tokens": (1, INT32_MAX),
    "draft_tokens": (1, 64),
    "tp": (1, MAX_TP_SIZE),
    "max_model_len": (2, INT32_MAX),
    "kv_tokens": (1, INT32_MAX),
    "workers": (1, INT32_MAX),
    "seed": (-(2**63), 2**63 - 1),
}
"""Ranges of whole numbers; what fits the machine beside them is known with the trace."""
EVERY_EIGHTH = 64
"""Requests up to which captures come in steps of 8; beyond, each holds twice as many."""


class SettingsError(DsacpError):
    """Settings ask for more than the machine or the buffers' limits allow."""


@dataclass(frozen=True)
class ReplayConfig:
    """Everything ``dsacp replay`` can be told; None means "derive it" (see ``resolve``).

    Attributes:
        trace: trace file, the packaged one by default.
        requests: requests to take from it, all by default.
        step_ms: virtual milliseconds of an engine step.
        max_num_seqs: requests of one step; 6 with a model, 64 without.
        max_num_batched_tokens: tokens of one step; 64 with a model, 2048 without.
        capture_sizes: step-0 tokens to capture, rounded up to lcm(K+1, tp); empty runs eager.
        draft_tokens: K.
        tp: ranks that share the tokens.
        drafter: "mtp" runs the reference model, "none" checks metadata only.
        acceptance: chance that a draft is accepted when the one before it was ("none" only).
        seed: of weights, prompts and acceptance.
        device: where metadata and model live.
        json: where to write the report as JSON.
        max_model_len: tokens at which a request ends; by default none of the trace reaches it.
        kv_tokens: raw tokens that every KV group holds, in whole blocks, beside one block for each
            of ``max_num_seqs`` requests; fewer cause preemption.
        layout: rows of draft steps >= 1 inside a bucket: padded requests, or padded tokens.
        padding: "dummy" requests (Ascend) or "repeat"-ed starts (vLLM V2).
        overflow: draft steps at max_model_len (docs/conventions.md, "Lengths and positions").
        workers: processes that share the ranks ("none" on the CPU only).

    Raises:
        LayoutError: a value is outside its range.
    """

    trace: Path | None = None
    requests: int | None = None
    step_ms: float = 50.0
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    capture_sizes: tuple[int, ...] | None = None
    draft_tokens: int = 3
    tp: int = 4
    drafter: Drafter = "mtp"
    acceptance: float = 0.7
    seed: int = 0
    device: DeviceName = "cpu"
    json: Path | None = None
    max_model_len: int | None = None
    kv_tokens: int | None = None
    layout: StepLayout = "requests"
    padding: PaddingName = "dummy"
    overflow: OverflowName = "reset"
    workers: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            choices = CHOICES.get(field.name)
            if choices is not None and value not in choices:
                raise LayoutError(
                    f"expected --{field.name} as one of {', '.join(choices)}, found {value!r}: "
                    "pass one of these"
                )
            if field.name in WHOLE and value is not None:
                check_whole(f"--{field.name.replace('_', '-')}", value, *WHOLE[field.name])
        if not 0.0 < self.step_ms < math.inf:
            raise LayoutError(
                f"expected --step-ms above 0 and finite, found {self.step_ms}: pass milliseconds"
            )
        if not 0.0 <= self.acceptance <= 1.0:
            raise LayoutError(
                f"expected --acceptance in 0..1, found {self.acceptance}: pass a chance"
            )
        for size in self.capture_sizes or ():
            check_whole("every one of --capture-sizes", size, 1)


@dataclass(frozen=True)
class Limits:
    """Settings with every default filled in for one trace.

    Attributes:
        max_num_seqs: requests of one step.
        max_num_batched_tokens: tokens of one step.
        max_model_len: tokens at which a request ends.
        kv_tokens: raw tokens that every KV group can hold beside one block a request.
        capture_sizes: step-0 tokens to capture, on the grid of lcm(K+1, tp).
        asked_sizes: what they were rounded up from.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    kv_tokens: int
    capture_sizes: tuple[int, ...]
    asked_sizes: tuple[int, ...]


def resolve(config: ReplayConfig, trace: Sequence[TraceRequest]) -> Limits:
    """Fill in what the configuration left open.

    ``max_model_len`` leaves room for the longest request and its drafts. The KV caches hold half
    of what ``max_num_seqs`` longest requests would fill, and two of them at least: a mixed trace
    seldom preempts, so that most of its steps run by graph.

    Raises:
        LayoutError: the trace is empty, or no prompt in it leaves room to generate.
    """
    if not trace:
        raise LayoutError("expected at least one request, found an empty trace: pass another one")
    model = config.drafter == "mtp"
    seqs = config.max_num_seqs or (6 if model else 64)
    query_len = config.draft_tokens + 1
    budget = config.max_num_batched_tokens or max(64 if model else 2048, query_len)
    longest = max(request.input_length + request.output_length for request in trace)
    model_len = config.max_model_len or round_up(longest + 2 * query_len, 64)
    shortest = min(request.input_length for request in trace)
    if shortest >= model_len:
        raise LayoutError(
            f"expected a prompt shorter than --max-model-len {model_len}, found {shortest} tokens "
            "in the shortest: raise it, or every request is refused"
        )
    # a pool never holds more than every request at its longest
    kv_tokens = min(
        config.kv_tokens or max(2 * model_len, seqs * model_len // 2), max(2, seqs) * model_len
    )
    given = config.capture_sizes
    sizes = default_captures(seqs, query_len) if given is None else given
    aligned = align_capture_sizes(sizes, config.draft_tokens, config.tp)
    return Limits(seqs, budget, model_len, kv_tokens, aligned, tuple(sorted(set(sizes))))


def default_captures(max_num_seqs: int, query_len: int) -> tuple[int, ...]:
    """Return sizes for 1, 2, 4 and then every 8 requests, up to ``max_num_seqs`` or just past.

    Beyond 64 requests each size is twice the one before: a capture takes time too.
    """
    counts = [1, 2, 4, *range(8, min(round_up(max_num_seqs, 8), EVERY_EIGHTH) + 1, 8)]
    while counts[-1] < max_num_seqs:
        counts.append(2 * counts[-1])
    useful = [count for count in counts if count // 2 < max_num_seqs or count < max_num_seqs + 8]
    return tuple(count * query_len for count in useful)
