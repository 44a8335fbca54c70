"""Bit-for-bit comparison of two executors' metadata, and of addresses over time."""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from dsacp.app.replay.builders import RankBuilders
from dsacp.drafting_cache import StepMetadata
from dsacp.graph import tensors_of

KEPT_EXAMPLES = 8
REMEMBERED = 512
"""Shapes whose tensors are looked up once; prefill steps rarely have the same shape twice."""

K = TypeVar("K")
V = TypeVar("V")


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
        self._pairs: OrderedDict[tuple[str, int, int, int], Pairs] = OrderedDict()

    def compare(self, index: int, owner: str, left: StepMetadata, right: StepMetadata) -> None:
        """Compare one step of one rank and role (``owner``)."""
        key = (owner, left.draft_index, left.num_reqs, left.num_tokens)
        if (left.num_reqs, left.num_tokens) != (right.num_reqs, right.num_tokens):
            shapes = f"{left.num_reqs}x{left.num_tokens} and {right.num_reqs}x{right.num_tokens}"
            self._findings.add(Mismatch(index, owner, f"shapes differ: {shapes}"))
            return
        pairs = self._pairs.get(key)
        if pairs is None:
            pairs = _pairs(left, right)
            remember(self._pairs, key, pairs)
        else:
            self._pairs.move_to_end(key)
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
    """Remembers where every field of a (rank, role, draft step) lies, and counts moves (I1).

    A field begins at one address whatever the batch, for every shape is a prefix of its buffer.
    Rows of a rank's own tokens are the exception: they begin where its shard does.
    """

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._addresses: dict[str, int] = {}
        # Objects that were looked at; held, so that their ids stay theirs.
        self._seen: OrderedDict[tuple[str, int], StepMetadata] = OrderedDict()

    def look(self, label: str, metadata: StepMetadata) -> None:
        """Check one step's metadata under a label that is unique to executor, rank and role."""
        seen = (label, id(metadata))
        if seen in self._seen:
            self._seen.move_to_end(seen)
            return
        remember(self._seen, seen, metadata)
        for path, tensor in tensors_of(metadata, f"{label}.{metadata.draft_index}"):
            if ".local_rope" in path and ".banks" not in path:
                continue
            known = self._addresses.setdefault(path, tensor.data_ptr())
            if known != tensor.data_ptr():
                self._findings.addresses_moved += 1
                self._addresses[path] = tensor.data_ptr()


def remember(memory: OrderedDict[K, V], key: K, value: V) -> None:
    """Keep a value, and forget the one that was used longest ago beyond ``REMEMBERED``."""
    memory[key] = value
    if len(memory) > REMEMBERED:
        memory.popitem(last=False)


def buffer_bytes(ranks: Sequence[RankBuilders]) -> Counter[str]:
    """Return the bytes of every storage by role."""
    sizes: Counter[str] = Counter()
    for rank in ranks:
        for role, builder in rank.named.items():
            sizes[role] += sum(storage.nbytes for storage in builder.storages())
    return sizes
