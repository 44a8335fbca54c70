"""What global metadata must hold, worked out from the schedule in plain Python.

The two executors share their kernels; this shares none of it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from dsacp.app.replay.settings import OverflowName
from dsacp.app.scheduling import BlockPool, EngineStep
from dsacp.drafting_cache import GroupSpec, StepMetadata

Difference = tuple[str, str]
"""Path of a tensor, and what differs."""


@dataclass(frozen=True)
class Expectation:
    """Checks one step's metadata against the schedule.

    Attributes:
        specs: KV groups of the builder.
        columns: index of each of those groups in the block pool.
        max_model_len: where draft steps overflow.
        overflow: what they do then.
    """

    specs: Sequence[GroupSpec]
    columns: Sequence[int]
    max_model_len: int
    overflow: OverflowName

    def first(
        self, step: EngineStep, pool: BlockPool, metadata: StepMetadata
    ) -> Iterator[Difference]:
        """Yield what differs in the step that runs all tokens of the batch."""
        starts: list[int] = [0]
        positions: list[int] = []
        owners: list[int] = []
        for row in step.rows:
            starts.append(starts[-1] + row.num_tokens)
            positions += range(row.start, row.seq_len)
            owners += [row.request_id] * row.num_tokens
        lengths = [row.seq_len for row in step.rows]
        yield from self._check(metadata, starts, lengths, positions, positions, owners, pool)

    def later(
        self, step: EngineStep, rejected: Sequence[int], pool: BlockPool, metadata: StepMetadata
    ) -> Iterator[Difference]:
        """Yield what differs in a later draft step, which has one token a request."""
        ahead = metadata.draft_index - 1
        raw = [
            row.seq_len - refused + ahead for row, refused in zip(step.rows, rejected, strict=True)
        ]
        last = self.max_model_len - 1
        if self.overflow == "saturate":
            positions = slots = [min(position, last) for position in raw]
        else:
            positions = [position if position <= last else 0 for position in raw]
            slots = [position if position <= last else -1 for position in raw]
        starts = list(range(step.num_reqs + 1))
        owners = [row.request_id for row in step.rows]
        lengths = [position + 1 for position in positions]
        yield from self._check(metadata, starts, lengths, positions, slots, owners, pool)

    def _check(
        self,
        metadata: StepMetadata,
        starts: list[int],
        lengths: list[int],
        positions: list[int],
        slot_positions: list[int],
        owners: list[int],
        pool: BlockPool,
    ) -> Iterator[Difference]:
        for spec, column in zip(self.specs, self.columns, strict=True):
            group = metadata.groups[spec.name]
            wanted = {
                "query_start_loc": (group.query_start_loc[: len(starts)], starts),
                "seq_lens": (group.seq_lens, _padded(lengths, group.seq_lens, 0)),
                "positions": (group.positions, _padded(positions, group.positions, 0)),
            }
            if group.slot_mapping is not None:
                slots = _slots(slot_positions, owners, pool, column, spec.block_size)
                wanted["slot_mapping"] = (
                    group.slot_mapping,
                    _padded(slots, group.slot_mapping, -1),
                )
            for name, (found, expected) in wanted.items():
                if (values := found.tolist()) != expected:
                    yield f"groups[{spec.name!r}].{name}", _describe(values, expected)


def _slots(
    positions: list[int], owners: list[int], pool: BlockPool, column: int, block_size: int
) -> list[int]:
    slots = []
    for position, owner in zip(positions, owners, strict=True):
        if position < 0:
            slots.append(-1)
            continue
        block = pool.blocks(owner)[column][position // block_size]
        slots.append(block * block_size + position % block_size)
    return slots


def _padded(values: list[int], tensor: Tensor, fill: int) -> list[int]:
    return values + [fill] * (tensor.numel() - len(values))


def _describe(found: list[int], expected: list[int]) -> str:
    wrong = [at for at, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]]
    at = wrong[0] if wrong else min(len(found), len(expected))
    pair = f"{found[at : at + 1]}, the schedule says {expected[at : at + 1]}"
    return f"{len(wrong)} of {len(expected)} entries, first at {at}: found {pair}"
