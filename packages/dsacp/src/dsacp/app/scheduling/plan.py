"""What one engine step does: frozen, plain integers."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RowPlan:
    """One request's part of a step.

    Attributes:
        request_id: index of the request in the trace.
        start: position of the row's first token, equal to the tokens computed before.
        num_tokens: tokens computed now; a decode row has its last sampled token and its drafts.
        num_drafts: drafts among them, to be verified.
        is_decode: whether the row continues a sampled token; else it is a prefill chunk.
        samples: whether the row samples; a chunk before the last one of its prompt does not.
    """

    request_id: int
    start: int
    num_tokens: int
    num_drafts: int
    is_decode: bool
    samples: bool

    @property
    def seq_len(self) -> int:
        """KV length with this step's tokens."""
        return self.start + self.num_tokens


@dataclass(frozen=True)
class EngineStep:
    """One batch, decode rows first.

    Attributes:
        index: counts the steps that ran.
        time_ms: virtual time at which the step begins.
        rows: the batch, in the row order of the block tables.
        uniform: whether every row has exactly K+1 tokens, as a captured bucket asks.
        preempted: requests that gave their blocks back to let this step run.
    """

    index: int
    time_ms: float
    rows: tuple[RowPlan, ...]
    uniform: bool
    preempted: tuple[int, ...]

    @property
    def num_reqs(self) -> int:
        """Requests of the batch."""
        return len(self.rows)

    @property
    def num_tokens(self) -> int:
        """Query tokens of the batch."""
        return sum(row.num_tokens for row in self.rows)
