"""Capacity, memory and warnings of a serving configuration; each names the report it comes from."""

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dsacp.app.doctor.machine import Finding
from dsacp.app.doctor.memory import memory_findings
from dsacp.app.replay.settings import WHOLE
from dsacp.core import (
    CapacityError,
    DraftCapacity,
    LayoutError,
    align_capture_sizes,
    check_whole,
    round_up,
)

DEVICES = ("a2", "a5")
MOST_QUERIES = 16
"""Queries of a request that vllm-ascend's builder asserts, K+1 of them drafts."""


@dataclass(frozen=True)
class Serving:
    """A serving configuration.

    Attributes:
        max_num_seqs: requests of a step.
        max_num_batched_tokens: tokens of a step.
        draft_tokens: K.
        tp: ranks that share the tokens.
        capture_sizes: captured token counts, as the engine is told.
        max_model_len: longest request, None where not said.
        draft_eager: whether the speculative configuration says ``enforce_eager``.
        model: the model's ``config.json``, None where not said.
        dspark: whether the drafter drafts a whole block at once.
        device: "a2" or "a5", for the slot format.

    Raises:
        LayoutError: a count is outside its range.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    draft_tokens: int
    tp: int
    capture_sizes: tuple[int, ...]
    max_model_len: int | None
    draft_eager: bool
    model: Mapping[str, Any] | None
    dspark: bool = False
    device: str = "a2"

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "draft_tokens", "tp"):
            check_whole(f"--{name.replace('_', '-')}", getattr(self, name), *WHOLE[name])
        if self.max_model_len is not None:
            check_whole("--max-model-len", self.max_model_len, *WHOLE["max_model_len"])
        for size in self.capture_sizes:
            check_whole("every one of --capture-sizes", size, 1)
        if self.device not in DEVICES:
            raise LayoutError(
                f"expected --device as one of {', '.join(DEVICES)}, found {self.device!r}: "
                "a2 stands for A3 too"
            )

    @property
    def grid(self) -> int:
        """What a capture size must be a multiple of."""
        return math.lcm(self.draft_tokens + 1, self.tp)

    @property
    def usable(self) -> tuple[int, ...]:
        """Capture sizes on the grid."""
        return tuple(size for size in sorted(self.capture_sizes) if size % self.grid == 0)


def serving_findings(serving: Serving, on_ascend: bool = False) -> list[Finding]:
    """Return everything that can be said about a configuration, capacity first.

    Args:
        serving: the configuration.
        on_ascend: whether vllm-ascend is the host, whose limits are then no mere warning.
    """
    limits = [*_limits(serving), *_upstreams_limits(serving, on_ascend)]
    return [*_capacity(serving), *_captures(serving), *limits]


def _upstreams_limits(serving: Serving, on_ascend: bool) -> Iterator[Finding]:
    queries = serving.draft_tokens + 1
    if queries > MOST_QUERIES:
        yield Finding(
            "problem" if on_ascend else "warning",
            f"K+1={queries} tokens a request: vllm-ascend asserts at most {MOST_QUERIES}; use "
            f"--draft-tokens {MOST_QUERIES - 1} or fewer",
        )


def _capacity(serving: Serving) -> Iterator[Finding]:
    try:
        capacity = bounds(serving, serving.usable)
        # vllm-ascend pads to every size that it is given, on the grid or not
        padded = align_capture_sizes(serving.capture_sizes, serving.draft_tokens, serving.tp)
        on_ascend = bounds(serving, padded)
    except (CapacityError, LayoutError) as error:
        yield Finding("problem", str(error))
        return
    yield Finding(
        "ok",
        f"capacity: {capacity.max_reqs} requests and {capacity.max_tokens} tokens in a first "
        f"step, {capacity.max_rows} rows in a later one",
    )
    yield from memory_findings(
        capacity,
        on_ascend,
        serving.model or {},
        serving.max_model_len,
        dspark=serving.dspark,
        slot_width=1 if serving.device == "a5" else 2,
        captures=bool(serving.capture_sizes),
    )
    if capacity.max_rows > serving.max_num_seqs and serving.usable:
        yield Finding(
            "note",
            f"a bucket of {max(serving.usable)} tokens gives {max(serving.usable)} one-token "
            f"requests while max_num_seqs is {serving.max_num_seqs}: buffers by max_num_seqs fail "
            "here with EZ1007 or EZ9999 (vllm-ascend #16168), these hold them",
        )


def bounds(serving: Serving, sizes: tuple[int, ...]) -> DraftCapacity:
    """Return the buffer bounds of a configuration with these captured token counts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # each size is reported apart, with its reason
        return DraftCapacity.from_config(
            serving.max_num_seqs,
            max(serving.max_num_batched_tokens, serving.draft_tokens + 1),
            serving.draft_tokens,
            serving.tp,
            sizes,
            layout="tokens",
        )


def _captures(serving: Serving) -> Iterator[Finding]:
    queries = serving.draft_tokens + 1
    largest = max(serving.capture_sizes, default=0)
    if largest > max(serving.max_num_batched_tokens, serving.max_num_seqs * queries):
        yield Finding(
            "problem",
            f"capture size {largest} is beyond what a step can have: max_num_batched_tokens is "
            f"{serving.max_num_batched_tokens}; buffers would be made for it and never filled",
        )
    for size in sorted(serving.capture_sizes):
        causes = [
            f"{name}={value}"
            for name, value in (("K+1", queries), ("tp", serving.tp))
            if size % value
        ]
        if causes or size % serving.grid:
            yield Finding(
                "warning",
                f"capture size {size} is no multiple of {' or '.join(causes) or serving.grid}: "
                f"it never matches a verify batch; use {round_up(size, serving.grid)} "
                "(vllm-ascend #3910, vLLM #29036)",
            )
    if serving.capture_sizes and not serving.usable:
        yield Finding(
            "problem",
            f"no capture size is a multiple of lcm(K+1={queries}, tp={serving.tp})="
            f"{serving.grid}: every draft step runs eager",
        )
    held = max(serving.usable, default=0) // queries
    if serving.usable and held < serving.max_num_seqs:
        yield Finding(
            "warning",
            f"the largest capture size {max(serving.usable)} holds {held} requests, max_num_seqs "
            f"is {serving.max_num_seqs}: more run eager, several times slower (vllm-ascend "
            f"#16049); add {round_up(serving.max_num_seqs * queries, serving.grid)}",
        )


def _limits(serving: Serving) -> Iterator[Finding]:
    queries = serving.draft_tokens + 1
    if serving.max_num_batched_tokens < serving.max_num_seqs * queries:
        yield Finding(
            "warning",
            f"{serving.max_num_seqs} requests verify {serving.max_num_seqs * queries} tokens, "
            f"max_num_batched_tokens is {serving.max_num_batched_tokens}: raise it (vLLM #32591)",
        )
    if serving.draft_eager:
        yield Finding(
            "warning",
            "the speculative configuration has enforce_eager: drafts never run in a graph; it "
            "was the way around the crash that dsacp removes",
        )
    table = _table_length(serving.model or {})
    if table is not None and serving.max_model_len is not None and serving.max_model_len > table:
        yield Finding(
            "problem",
            f"max_model_len {serving.max_model_len} exceeds the {table} rows of the RoPE table: "
            "positions past it read foreign memory (vLLM #57941)",
        )


def _table_length(model: Mapping[str, Any]) -> int | None:
    rope = model.get("rope_scaling") or model.get("rope_parameters") or {}
    trained = rope.get("original_max_position_embeddings") or model.get("max_position_embeddings")
    if trained is None:
        return None
    scaled = rope.get("original_max_position_embeddings") is not None
    factor = rope.get("factor") if scaled else None
    return int(trained * (1 if factor is None else factor))
