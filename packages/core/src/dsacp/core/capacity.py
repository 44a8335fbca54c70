"""How large the persistent buffers must be, and which captured shape a batch may use."""

import math
import warnings
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from dsacp.core.buckets import Uniform
from dsacp.core.checks import MAX_TP_SIZE, check_whole
from dsacp.core.errors import CapacityError, LayoutError
from dsacp.core.shard import round_up

StepLayout = Literal["tokens", "requests"]


def align_capture_sizes(
    sizes: Iterable[int], num_draft_tokens: int, tp_size: int
) -> tuple[int, ...]:
    """Round capture sizes of our own up to lcm(K+1, tp), so that each is a whole uniform batch.

    A host's sizes are never changed: pass those to ``DraftCapacity.from_config`` as they are.

    Raises:
        LayoutError: a value is no whole number, or out of its range.
    """
    sizes = tuple(sizes)
    _check_drafts(num_draft_tokens, tp_size)
    _check_sizes(sizes)
    grid = math.lcm(num_draft_tokens + 1, tp_size)
    return tuple(sorted({round_up(size, grid) for size in sizes}))


@dataclass(frozen=True)
class DraftCapacity:
    """Bounds of every buffer of one serving configuration (docs/invariants.md I3).

    Attributes:
        max_num_seqs: real requests a batch may hold.
        num_draft_tokens: K, draft tokens a step.
        tp_size: ranks that share the tokens.
        max_reqs: request rows that any step reads or writes, the dummy request included. It sizes
            step 0, the batch inputs that all steps read, and the block tables.
        max_tokens: token rows of step 0, a multiple of ``tp_size``.
        max_rows: request and token rows of steps >= 1, a multiple of ``tp_size``, at most
            ``max_reqs``.
        capture_sizes: step-0 token counts that may be captured, ascending.
        layout: whether rows of steps >= 1 are the padded tokens (vLLM-Ascend v1) or requests.

    Raises:
        LayoutError: a value is no whole number, or out of its range.
        CapacityError: ``max_reqs`` does not hold a full batch and its dummy request, or a later
            step's rows.
    """

    max_num_seqs: int
    num_draft_tokens: int
    tp_size: int
    max_reqs: int
    max_tokens: int
    max_rows: int
    capture_sizes: tuple[int, ...]
    layout: StepLayout

    def __post_init__(self) -> None:
        _check_drafts(self.num_draft_tokens, self.tp_size)
        for name in ("max_num_seqs", "max_reqs", "max_tokens", "max_rows"):
            check_whole(name, getattr(self, name), 1, do="lower the counts that it follows from")
        _check_sizes(self.capture_sizes)
        needed = max(self.max_num_seqs + 1, self.max_rows)
        if self.max_reqs < needed:
            raise CapacityError(
                f"expected max_reqs >= {needed} for {self.max_num_seqs} requests, a dummy one and "
                f"later steps of {self.max_rows} rows, found {self.max_reqs}: use from_config"
            )

    @classmethod
    def from_config(
        cls,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        num_draft_tokens: int,
        tp_size: int,
        capture_sizes: Iterable[int] = (),
        layout: StepLayout = "tokens",
    ) -> "DraftCapacity":
        """Derive the bounds from a serving configuration.

        Off-grid capture sizes are dropped with a warning, never changed.

        Raises:
            LayoutError: a count or a capture size is no whole number or out of its range, or no
                capture size is left on the grid.
            CapacityError: the token budget cannot hold one uniform batch of one request.
        """
        _check_counts(max_num_seqs, max_num_batched_tokens, num_draft_tokens, tp_size, layout)
        query_len = num_draft_tokens + 1
        capture_sizes = tuple(capture_sizes)
        _check_sizes(capture_sizes)
        sizes = _on_grid(capture_sizes, query_len, tp_size)
        largest = max(sizes, default=0)
        # A capture of 16 tokens is seen as up to 16 one-token requests (upstream U30).
        reqs = max(max_num_seqs, largest) + 1
        tokens = max(max_num_batched_tokens, largest, max_num_seqs * query_len)
        rows = max(max_num_seqs, largest if layout == "tokens" else largest // query_len)
        max_rows = round_up(rows, tp_size)
        return cls(
            max_num_seqs=max_num_seqs,
            num_draft_tokens=num_draft_tokens,
            tp_size=tp_size,
            # Later steps read the inputs of as many rows as they have, rounded up to the ranks.
            max_reqs=max(reqs, max_rows),
            max_tokens=round_up(tokens, tp_size),
            max_rows=max_rows,
            capture_sizes=sizes,
            layout=layout,
        )

    def kind(self, bucket: int) -> Uniform:  # noqa: ARG002 - every bucket is of one kind today
        """Return which batches a captured size is declared for: all for ``uniform(K+1)``."""
        return Uniform(self.num_draft_tokens + 1)

    def admits(self, bucket: int, num_tokens: int, num_reqs: int) -> bool:
        """Tell whether a batch of these totals may run in a captured bucket.

        No requests are admitted too: an idle data-parallel rank joins its peers' bucket.
        """
        held = bucket in self.capture_sizes and num_tokens <= bucket
        return held and self.kind(bucket).admits(num_tokens, num_reqs)

    def bucket(self, num_tokens: int, num_reqs: int, uniform: bool) -> int | None:
        """Return the smallest captured size that admits a batch, or None to run eager.

        ``uniform`` says that every request has exactly K+1 query tokens; a bucket admits only
        its own kind, so 16 one-token requests never use a capture of 4 x 4. An idle rank has no
        size of its own: it takes its peers'.
        """
        if not uniform or num_reqs < 1:
            return None
        index = bisect_left(self.capture_sizes, num_tokens)
        size = self.capture_sizes[index] if index < len(self.capture_sizes) else 0
        return size if self.admits(size, num_tokens, num_reqs) else None

    def rows(self, step: int, bucket: int) -> int:
        """Return the request rows that ``step`` has in ``bucket`` (``bucket`` = step-0 tokens).

        Raises:
            LayoutError: there is no such step, or the bucket is off the grid of lcm(K+1, tp).
        """
        check_whole("a draft step", step, 0, self.num_draft_tokens - 1)
        check_whole("a bucket", bucket, 1)
        grid = math.lcm(self.num_draft_tokens + 1, self.tp_size)
        if bucket % grid:
            raise LayoutError(
                f"expected a bucket in multiples of lcm(K+1={self.num_draft_tokens + 1}, "
                f"tp={self.tp_size})={grid}, found {bucket}: use {round_up(bucket, grid)}, or run "
                "eager"
            )
        requests = bucket // (self.num_draft_tokens + 1)
        if step == 0:
            return requests
        return bucket if self.layout == "tokens" else round_up(requests, self.tp_size)


def _check_counts(
    max_num_seqs: int, max_tokens: int, num_draft_tokens: int, tp_size: int, layout: str
) -> None:
    check_whole("max_num_seqs", max_num_seqs, 1)
    check_whole("max_num_batched_tokens", max_tokens, 1)
    _check_drafts(num_draft_tokens, tp_size)
    if layout not in ("tokens", "requests"):
        raise LayoutError(f"expected layout 'tokens' or 'requests', found {layout!r}")
    if max_tokens < num_draft_tokens + 1:
        raise CapacityError(
            f"one request needs {num_draft_tokens + 1} tokens to verify {num_draft_tokens} drafts, "
            f"max_num_batched_tokens holds {max_tokens}: raise it or draft fewer tokens"
        )


def _check_drafts(num_draft_tokens: int, tp_size: int) -> None:
    check_whole("num_draft_tokens", num_draft_tokens, 1)
    check_whole("tp_size", tp_size, 1, MAX_TP_SIZE)


def _check_sizes(sizes: Iterable[int]) -> None:
    for size in sizes:
        check_whole("a capture size", size, 1, do="pass token counts, or none to run eager")


def _on_grid(sizes: Iterable[int], query_len: int, tp_size: int) -> tuple[int, ...]:
    given = sorted(set(sizes))
    grid = math.lcm(query_len, tp_size)
    kept = tuple(size for size in given if size % grid == 0)
    dropped = [size for size in given if size not in kept]
    if given and not kept:
        raise LayoutError(
            f"expected capture sizes in multiples of lcm(K+1={query_len}, tp={tp_size})={grid}, "
            f"found {given}: use multiples of {grid}, or pass none to run eager"
        )
    if dropped:
        warnings.warn(
            f"capture sizes {dropped} are not multiples of lcm(K+1={query_len}, tp={tp_size})="
            f"{grid} and will run eager; use multiples of {grid}",
            stacklevel=3,
        )
    return kept
