"""Every batch that ``max_num_seqs`` allows is served, whatever the ranks and the captures."""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import pytest
import torch

from dsacp.core import DraftCapacity, DsacpError, TokenShard
from dsacp.drafting_cache import DraftBatch, DraftMetadataBuilder, GroupSpec
from dsacp.rope_proxy import RopeRegistry

K, LAYOUTS = 2, ("tokens", "requests")
LENGTHS = torch.full((17,), 9, dtype=torch.int32)
ONES = torch.arange(18, dtype=torch.int32)


@dataclass(frozen=True)
class Size:
    """One configuration: requests, ranks, which captures, and what later rows are."""

    seqs: int
    tp: int
    captures: str
    layout: str

    def capacity(self) -> DraftCapacity:
        grid = math.lcm(K + 1, self.tp)
        sizes: dict[str, Sequence[int]] = {
            "none": (),
            # a size below the ranks is off the grid: it runs eager
            "below tp": (max(self.tp - 1, 1), grid),
            "above": (grid, 2 * grid, grid * (2 + self.seqs // 2)),
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return DraftCapacity.from_config(
                self.seqs, 8, K, self.tp, sizes[self.captures], self.layout
            )


def sizes(seqs: Sequence[int], ranks: Sequence[int]) -> Iterator[Size]:
    return (Size(*size) for size in product(seqs, ranks, ("none", "below tp", "above"), LAYOUTS))


def make_builder(size: Size) -> DraftMetadataBuilder:
    capacity = size.capacity()
    shard = TokenShard(0, size.tp, size.tp - 1)
    builder = DraftMetadataBuilder(
        capacity,
        [GroupSpec("g", 16)],
        RopeRegistry(),
        shard,
        max_model_len=64,
    )
    builder.bind({"g": torch.ones(capacity.max_reqs, 4, dtype=torch.int32)})
    return builder


def uniform(count: int, query_len: int, bucket: int | None = None) -> DraftBatch:
    starts = ONES[: count + 1] * query_len
    return DraftBatch(count, count * query_len, starts, LENGTHS[:count], None, bucket)


def serve(builder: DraftMetadataBuilder, count: int) -> int:
    """Bring a batch through every entry point; returns how many calls that were."""
    capacity = builder.config.capacity
    tokens = count * (K + 1)
    bucket = capacity.bucket(tokens, count, uniform=True)
    builder.build_all(uniform(count, K + 1))
    builder.build(uniform(count, 1))
    for draft_index in range(K):
        builder.build_for_drafting(uniform(count, 1), draft_index)
    if bucket is None:
        return 2 + K
    builder.stage(uniform(count, K + 1, bucket))
    builder.refresh(bucket)
    builder.build_for_drafting(uniform(count, 1, bucket), 1)
    return 5 + K


def check(
    configurations: Sequence[Size], guards: Callable[..., None], warm: bool
) -> tuple[int, list[str]]:
    """Return how many calls were made, and what was refused."""
    tried, refused = 0, []
    for size in configurations:
        builder = make_builder(size)
        for count in range(1, size.seqs + 1):
            try:
                tried += serve(builder, count)
            except DsacpError as error:
                refused.append(f"{size} batch {count}: {error}")
        if warm:
            builder.warmup()
            tried += 1
        # the bound that lets a batch in is the one that its buffers have
        guards(builder)
    return tried, refused


def test_no_batch_within_max_num_seqs_is_refused(check_guards: Callable[..., None]) -> None:
    """Steps >= 1 have requests rounded up to the ranks, staging held max_num_seqs + 1 of them.

    max_num_seqs 6 with tp 4 refused batches of 5 and 6; in vLLM the engine ended.
    """
    chosen = list(sizes((1, 5, 6), (1, 3, 4, 16)))
    tried, refused = check(chosen, check_guards, warm=False)
    print(f"{tried} calls in {len(chosen)} configurations, {len(refused)} refused")
    assert refused == []


@pytest.mark.slow
def test_no_batch_is_refused_in_any_configuration(
    check_guards: Callable[..., None],
) -> None:
    chosen = list(sizes(range(1, 18), range(1, 17)))
    tried, refused = check(chosen, check_guards, warm=True)
    print(f"{tried} calls in {len(chosen)} configurations, {len(refused)} refused")
    assert refused == []


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_warming_up_fits_more_ranks_than_requests(tp: int) -> None:
    """Warming up was the first to be refused: one request in four ranks has four rows."""
    for layout in LAYOUTS:
        make_builder(Size(1, tp, "none", layout)).warmup()
