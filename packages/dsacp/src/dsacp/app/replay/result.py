"""What a replay found, as plain numbers that add up over processes."""

from collections import Counter
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from dsacp.app.replay.compare import Findings


@dataclass(frozen=True)
class MetadataCost:
    """What metadata of one engine step costs one rank, target and drafter together.

    Attributes:
        eager_launches: when every step is built by itself.
        graph_launches: when inputs are staged and graphs are replayed.
        eager_us: microseconds, the same way.
        graph_us: likewise.
    """

    eager_launches: float
    graph_launches: float
    eager_us: float
    graph_us: float


@dataclass
class ReplayResult:
    """Counts of one replay.

    Attributes:
        expected_requests: requests of the trace.
        steps: engine steps.
        requests: finished requests.
        refused: requests whose prompt leaves no room to generate.
        prompt_tokens: prompt tokens computed, recomputed ones included.
        output_tokens: tokens generated.
        preemptions: times that a request gave its blocks back.
        proposed: drafts verified, by draft position.
        accepted: those accepted.
        buckets: steps by captured size; 0 counts eager steps.
        findings: what differed.
        buffer_bytes: bytes of buffers by owner.
        cost: of metadata, None when no step used a bucket.
        captured: sizes captured.
        asked: sizes that the captured ones were rounded up from.
        ranks: ranks checked.
        seconds: wall time of the steps.
        capture_seconds: wall time of the captures.
        smallest_margin: least distance of a chosen token's logit to the second best.
    """

    expected_requests: int = 0
    steps: int = 0
    requests: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    proposed: Counter[int] = field(default_factory=Counter)
    accepted: Counter[int] = field(default_factory=Counter)
    buckets: Counter[int] = field(default_factory=Counter)
    findings: Findings = field(default_factory=Findings)
    buffer_bytes: Counter[str] = field(default_factory=Counter)
    cost: MetadataCost | None = None
    captured: tuple[int, ...] = ()
    asked: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    seconds: float = 0.0
    capture_seconds: float = 0.0
    smallest_margin: float | None = None

    @property
    def ok(self) -> bool:
        """Whether the whole trace ran, nothing differed and nothing moved."""
        found = self.findings
        return self.complete and not found.mismatches and not found.addresses_moved

    @property
    def complete(self) -> bool:
        """Whether every request ended, and some step was compared: nothing proves nothing."""
        ended = self.requests + self.refused
        compared = self.steps > 0 and self.findings.fields_compared > 0
        return compared and ended == self.expected_requests

    @property
    def acceptance(self) -> dict[int, float]:
        """Accepted share of the drafts at each position, from 1."""
        return {at: self.accepted[at] / count for at, count in sorted(self.proposed.items())}

    def join(self, other: "ReplayResult") -> None:
        """Add another process's ranks; both replayed the same schedule."""
        self.findings.join(other.findings)
        self.buffer_bytes.update(other.buffer_bytes)
        self.ranks = tuple(sorted((*self.ranks, *other.ranks)))
        self.seconds = max(self.seconds, other.seconds)
        self.capture_seconds = max(self.capture_seconds, other.capture_seconds)

    def as_json(self) -> dict[str, Any]:
        """Return everything as JSON types."""
        row = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, value in row.items():
            if isinstance(value, Counter):
                row[name] = {str(key): count for key, count in sorted(value.items())}
        row["cost"] = None if self.cost is None else asdict(self.cost)
        row["findings"] = {
            **vars(self.findings),
            "examples": [str(example) for example in self.findings.examples],
        }
        row["acceptance"] = self.acceptance
        row["ok"] = self.ok
        row["complete"] = self.complete
        row["steps_per_second"] = self.steps / self.seconds if self.seconds else None
        return row
