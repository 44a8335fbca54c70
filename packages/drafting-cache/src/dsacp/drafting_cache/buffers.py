"""Every persistent buffer of one builder, sized by its capacity."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dsacp.core import BufferRegion, DraftCapacity, Uncopied
from dsacp.drafting_cache.arena import Arena, FieldKey, plan_arena
from dsacp.drafting_cache.types import BoundInputs, GroupSpec
from dsacp.kernels import DRAFT_FIELDS, compressor_row_count, field_length
from dsacp.rope_proxy import RopeBanks, RopeRegistry
from dsacp.sas_metadata import SAS_METADATA_SIZE

RopeTable = tuple[Tensor, Tensor]
STAGING: FieldKey = ("staging", 0, "inputs")
COMPRESSOR_WORDS = ("compress_slots", "compress_positions", "compress_requests")
COMPRESSOR_ROPE = ("compress_cos", "compress_sin")


@dataclass(frozen=True)
class Buffers(Uncopied):
    """Storages and the device tables that kernels find their fields by.

    Attributes:
        words: int32 arena of every integer field and the staging block.
        floats: float32 arena of the compressors' RoPE rows, None when there are none.
        rope: RoPE rows of every draft step.
        layout: int32 [G, S, F] word offsets in ``words``, -1 where a field is absent.
        staging: where moving host inputs are copied.
        staging_block: the same words as one tensor, for the staging launch.
        compress_tables: full cos and sin tables by compress ratio.
    """

    words: Arena
    floats: Arena | None
    rope: RopeBanks
    layout: Tensor
    staging: BoundInputs
    staging_block: Tensor
    compress_tables: Mapping[int, RopeTable]

    def regions(self) -> tuple[BufferRegion, ...]:
        """Return every field of every storage."""
        floats = () if self.floats is None else self.floats.regions()
        return (*self.words.regions(), *floats, *self.rope.regions())

    def storages(self) -> tuple[Tensor, ...]:
        """Return the storages that hold the regions."""
        floats = () if self.floats is None else (self.floats.storage,)
        return (self.words.storage, *floats, self.rope.storage)


def allocate(
    capacity: DraftCapacity,
    groups: Sequence[GroupSpec],
    registry: RopeRegistry,
    num_steps: int,
    device: torch.device,
    guard_words: int,
) -> Buffers:
    """Allocate buffers in their clean state: no requests, slots -1, cos 1, sin 0."""
    tables = {
        group.compress_ratio: registry.full_table(f"c{group.compress_ratio}", device)
        for group in groups
        if group.compressor
    }
    sizes = [(STAGING, 4 * capacity.max_reqs + 2)]
    for group in groups:
        for step in range(num_steps):
            sizes.extend(_word_fields(capacity, group, step))
    words = Arena.allocate(plan_arena(sizes, guard_words), device, torch.int32)
    rope_sizes = [
        size
        for group in groups
        if group.compressor
        for size in _compressor_rope_fields(capacity, group, tables)
    ]
    floats = (
        Arena.allocate(plan_arena(rope_sizes, guard_words), device, torch.float32)
        if rope_sizes
        else None
    )
    _clean(words, floats)
    block = words.view(STAGING)
    return Buffers(
        words=words,
        floats=floats,
        rope=RopeBanks(registry, capacity, num_steps, device, guard_words=guard_words),
        layout=_layout(words, groups, num_steps).to(device),
        staging=_staging_views(block, capacity.max_reqs),
        staging_block=block,
        compress_tables=tables,
    )


def storage_bytes(
    capacity: DraftCapacity,
    groups: Sequence[GroupSpec],
    registry: RopeRegistry,
    num_steps: int,
    guard_words: int = 16,
) -> int:
    """Return the bytes of a builder's storages, from the code that allocates, on the meta device.

    Raises:
        LayoutError: as a builder of these values would.
    """
    meta = torch.device("meta")
    buffers = allocate(capacity, groups, registry, num_steps, meta, guard_words)
    return sum(storage.nbytes for storage in buffers.storages())


def _word_fields(
    capacity: DraftCapacity, group: GroupSpec, step: int
) -> Iterator[tuple[FieldKey, int]]:
    rows = capacity.max_reqs if step == 0 else capacity.max_rows
    tokens = capacity.max_tokens if step == 0 else capacity.max_rows
    for field in DRAFT_FIELDS:
        if field != "slot_mapping" or group.has_slots:
            yield (group.name, step, field), field_length(field, rows, tokens)
    if group.sas is not None:
        yield (group.name, step, "sas_metadata"), SAS_METADATA_SIZE
    if group.qli is not None:
        yield (group.name, step, "qli_metadata"), SAS_METADATA_SIZE
    if group.compressor:
        for field in COMPRESSOR_WORDS:
            count = compressor_row_count(tokens, rows, group.compress_ratio)
            yield (group.name, step, field), count


def _compressor_rope_fields(
    capacity: DraftCapacity, group: GroupSpec, tables: Mapping[int, RopeTable]
) -> Iterator[tuple[FieldKey, int]]:
    rotary_dim = tables[group.compress_ratio][0].shape[-1]
    count = compressor_row_count(capacity.max_tokens, capacity.max_reqs, group.compress_ratio)
    for field in COMPRESSOR_ROPE:
        yield (group.name, 0, field), count * rotary_dim


def _clean(words: Arena, floats: Arena | None) -> None:
    for key in words.plan.fields:
        unused = key[2] == "slot_mapping" or key[2] in COMPRESSOR_WORDS
        words.view(key).fill_(-1 if unused else 0)
    for key in () if floats is None else floats.plan.fields:
        assert floats is not None
        floats.view(key).fill_(1.0 if key[2] == "compress_cos" else 0.0)


def _layout(words: Arena, groups: Sequence[GroupSpec], num_steps: int) -> Tensor:
    return torch.tensor(
        [
            [
                [words.plan.offset((group.name, step, field)) for field in DRAFT_FIELDS]
                for step in range(num_steps)
            ]
            for group in groups
        ],
        dtype=torch.int32,
    )


def _staging_views(block: Tensor, rows: int) -> BoundInputs:
    return BoundInputs(
        num_reqs=block[:1],
        query_start_loc=block[1 : rows + 2],
        seq_lens=block[rows + 2 : 2 * rows + 2],
        num_rejected=block[2 * rows + 2 : 3 * rows + 2],
        drafts=block[3 * rows + 2 :],
    )
