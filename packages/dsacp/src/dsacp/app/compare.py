"""Bit-for-bit comparison of two executors' metadata, and of addresses over time."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dsacp.app.builders import RankBuilders
from dsacp.drafting_cache import StepMetadata
from dsacp.graph import tensors_of

KEPT_EXAMPLES = 8


@dataclass(frozen=True)
class Mismatch:
    """One tensor that differs.

    Attributes:
        step: engine step.
        place: rank, role and path of the tensor.
        detail: the first differing entry with both values.
    """

    step: int
    place: str
    detail: str

    def __str__(self) -> str:
        return f"engine step {self.step}, {self.place}: {self.detail}"


@dataclass
class Findings:
    """What a run found wrong."""

    mismatches: int = 0
    addresses_moved: int = 0
    examples: list[Mismatch] = field(default_factory=list)
    fields_compared: int = 0

    def add(self, mismatch: Mismatch) -> None:
        """Count a mismatch and keep the first few."""
        self.mismatches += 1
        if len(self.examples) < KEPT_EXAMPLES:
            self.examples.append(mismatch)

    def join(self, other: "Findings") -> None:
        """Add what another process found."""
        self.mismatches += other.mismatches
        self.addresses_moved += other.addresses_moved
        self.fields_compared += other.fields_compared
        self.examples = [*self.examples, *other.examples][:KEPT_EXAMPLES]


Pairs = list[tuple[str, Tensor, Tensor]]


class StepComparer:
    """Compares step metadata of two executors field by field, up to the captured count.

    Views of one geometry are looked up once: their buffers never move, which ``AddressBook``
    proves of the objects that builders hand out.
    """

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._pairs: dict[tuple[str, int, int, int], Pairs] = {}

    def compare(self, index: int, owner: str, left: StepMetadata, right: StepMetadata) -> None:
        """Compare one step of one rank and role (``owner``)."""
        key = (owner, left.draft_index, left.num_reqs, left.num_tokens)
        if (left.num_reqs, left.num_tokens) != (right.num_reqs, right.num_tokens):
            shapes = f"{left.num_reqs}x{left.num_tokens} and {right.num_reqs}x{right.num_tokens}"
            self._findings.add(Mismatch(index, owner, f"shapes differ: {shapes}"))
            return
        pairs = self._pairs.get(key)
        if pairs is None:
            pairs = self._pairs[key] = _pairs(left, right)
        self._findings.fields_compared += len(pairs)
        for path, one, other in pairs:
            if not torch.equal(one, other):
                place = f"{owner} draft step {left.draft_index} {path}"
                self._findings.add(Mismatch(index, place, first_difference(one, other)))


def _pairs(left: StepMetadata, right: StepMetadata) -> Pairs:
    others = dict(tensors_of(right, ""))
    pairs: Pairs = []
    for path, tensor in tensors_of(left, ""):
        if ".banks" in path or path.endswith(".block_table") or ".local_rope" in path:
            continue  # whole banks, shared inputs, and rows that ``rope`` holds already
        pairs.append((path, _bits(tensor), _bits(others.pop(path))))
    return pairs


def _bits(tensor: Tensor) -> Tensor:
    # NaN differs from itself, its bits do not.
    return tensor.view(torch.int32) if tensor.dtype is torch.float32 else tensor


def first_difference(one: Tensor, other: Tensor) -> str:
    """Describe the first entry in which two tensors of one shape differ."""
    where = (one != other).nonzero()
    at = tuple(where[0].tolist())
    return (
        f"{len(where)} of {one.numel()} entries, first at {list(at)}: "
        f"{one[at].item()} and {other[at].item()}"
    )


class AddressBook:
    """Remembers where every field of every shape lies, and counts those that moved (I1)."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._seen: dict[tuple[str, int], StepMetadata] = {}
        self._addresses: dict[str, int] = {}

    def look(self, label: str, metadata: StepMetadata) -> None:
        """Check one step's metadata under a label that is unique to executor, rank and role."""
        if (label, id(metadata)) in self._seen:
            return
        self._seen[label, id(metadata)] = metadata
        key = f"{label}.{metadata.draft_index}.{metadata.num_reqs}.{metadata.num_tokens}"
        for path, tensor in tensors_of(metadata, key):
            known = self._addresses.setdefault(path, tensor.data_ptr())
            if known != tensor.data_ptr():
                self._findings.addresses_moved += 1
                self._addresses[path] = tensor.data_ptr()


def buffer_bytes(ranks: Sequence[RankBuilders]) -> Counter[str]:
    """Return the bytes of every storage by role."""
    sizes: Counter[str] = Counter()
    for rank in ranks:
        for role, builder in rank.named.items():
            sizes[role] += sum(storage.nbytes for storage in builder.storages())
    return sizes
