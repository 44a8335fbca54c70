"""A small DeepSeek-V4-like host: groups, tables and batches of uneven requests."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter

import pytest
import torch

from dsacp.core import GUARD_WORD, DraftCapacity, TokenShard
from dsacp.drafting_cache import DraftBatch, DraftMetadataBuilder, GroupSpec
from dsacp.rope_proxy import RopeConfig, RopeRegistry
from dsacp.sas_metadata import QliSpec, SasSpec

MAX_MODEL_LEN = 512


def int32(values: Sequence[int]) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.int32)


@dataclass(frozen=True)
class Host:
    builder: DraftMetadataBuilder
    tables: dict[str, torch.Tensor]

    def batch(
        self,
        query_lens: Sequence[int],
        seq_lens: Sequence[int],
        rejected: Sequence[int] | None = None,
        bucket: int | None = None,
    ) -> DraftBatch:
        starts = [0]
        for length in query_lens:
            starts.append(starts[-1] + length)
        return DraftBatch(
            num_reqs=len(query_lens),
            num_tokens=starts[-1],
            query_start_loc=int32(starts),
            seq_lens=int32(seq_lens),
            num_rejected=None if rejected is None else int32(rejected),
            bucket=bucket,
        )


def rope_registry() -> RopeRegistry:
    registry = RopeRegistry()
    plain = RopeConfig(rotary_dim=8, max_position_embeddings=MAX_MODEL_LEN, base=10000.0)
    yarn = RopeConfig(rotary_dim=8, max_position_embeddings=256, base=40000.0, scaling_factor=4.0)
    registry.register("layers.0.attn", plain)
    registry.register("layers.1.attn", yarn, groups=("default", "c4"))
    registry.register("layers.2.attn", yarn, groups=("default", "c128"))
    return registry


def draft_groups(count: int) -> tuple[GroupSpec, ...]:
    spec = SasSpec(num_heads=64, num_cores=4)
    return tuple(
        GroupSpec(name=f"draft{index}", block_size=(4, 16, 6)[index % 3], sas=spec)
        for index in range(count)
    )


def target_groups() -> tuple[GroupSpec, ...]:
    return (
        GroupSpec("swa", 16, sas=SasSpec(num_heads=64, num_cores=4)),
        GroupSpec(
            "c4",
            8,
            sas=SasSpec(num_heads=64, num_cores=4, cmp_ratio=4, cmp_topk=512),
            compress_ratio=4,
            compressor=True,
        ),
        GroupSpec("indexer", 8, qli=QliSpec(num_cores=4), compress_ratio=4, compressor=True),
        GroupSpec(
            "c128",
            2,
            sas=SasSpec(num_heads=64, num_cores=4, cmp_ratio=128),
            compress_ratio=128,
            compressor=True,
        ),
        GroupSpec("c4_state", 4),
        GroupSpec("c128_state", 8),
    )


@pytest.fixture(scope="session")
def make_host() -> Callable[..., Host]:
    def make(
        max_num_seqs: int = 6,
        num_draft_tokens: int = 3,
        tp: tuple[int, int] = (4, 1),
        capture_sizes: Sequence[int] = (8, 16),
        groups: Sequence[GroupSpec] | None = None,
        layout: str = "tokens",
        seed: int = 0,
        max_model_len: int = MAX_MODEL_LEN,
        **options: object,
    ) -> Host:
        capacity = DraftCapacity.from_config(
            max_num_seqs, 64, num_draft_tokens, tp[0], capture_sizes, layout
        )
        specs = draft_groups(1) if groups is None else tuple(groups)
        builder = DraftMetadataBuilder(
            capacity,
            specs,
            rope_registry(),
            TokenShard(0, *tp),
            max_model_len=max_model_len,
            **options,
        )
        generator = torch.Generator().manual_seed(seed)
        tables = {}
        for spec in specs:
            columns = -(-max_model_len // (spec.block_size * spec.compress_ratio))
            shape = (capacity.max_reqs, columns)
            ids = torch.randint(1, 1000, shape, generator=generator, dtype=torch.int32)
            tables[spec.name] = ids.to(builder.config.device)
        builder.bind(tables)
        return Host(builder, tables)

    return make


@pytest.fixture(scope="session")
def draft_specs() -> Callable[[int], tuple[GroupSpec, ...]]:
    return draft_groups


@pytest.fixture(scope="session")
def target_specs() -> Callable[[], tuple[GroupSpec, ...]]:
    return target_groups


@pytest.fixture(scope="session")
def check_guards() -> Callable[[DraftMetadataBuilder], None]:
    """Nothing was written past the end of any buffer of a builder that has guard words."""

    def check(builder: DraftMetadataBuilder) -> None:
        bases = [(storage.data_ptr(), storage) for storage in builder.storages()]
        for region in builder.regions():
            base, storage = max((b for b in bases if b[0] <= region.address), key=itemgetter(0))
            end = (region.address + region.nbytes - base) // 4
            guard = storage.view(torch.int32)[end : end + region.guard_bytes // 4]
            assert guard.numel() > 0
            assert guard.eq(GUARD_WORD).all(), region

    return check
