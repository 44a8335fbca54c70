"""Replay random engine steps from graphs and compare every word with an eager build.

With `--oracle cpu` the eager side is the torch reference on the CPU.

Run: python benchmarks/random_steps.py [--steps N] [--tp SIZE] [--rank RANK]
"""

import argparse
import random
import sys

import torch
from timing import card

from dsacp.core import DraftCapacity, TokenShard
from dsacp.drafting_cache import DraftBatch, DraftMetadataBuilder, GroupSpec
from dsacp.graph import GraphGuard, capture
from dsacp.rope_proxy import RopeConfig, RopeRegistry
from dsacp.sas_metadata import SasSpec

DRAFT_TOKENS, MAX_MODEL_LEN, BUCKETS = 3, 4096, (8, 16, 32, 64, 128, 256)


def make_builder(
    tp: int, rank: int, tables: dict[str, torch.Tensor], device: str
) -> DraftMetadataBuilder:
    """Return a builder of two draft groups of different block sizes."""
    capacity = DraftCapacity.from_config(64, 512, DRAFT_TOKENS, tp, BUCKETS)
    rope = RopeRegistry()
    rope.register("plain", RopeConfig(64, MAX_MODEL_LEN, 10000.0))
    rope.register("yarn", RopeConfig(64, 1024, 40000.0, scaling_factor=4.0))
    spec = SasSpec(num_heads=64)
    groups = [GroupSpec("a", 64, sas=spec), GroupSpec("b", 128, sas=spec)]
    shard = TokenShard(0, tp, rank)
    builder = DraftMetadataBuilder(
        capacity, groups, rope, shard, device, max_model_len=MAX_MODEL_LEN
    )
    builder.bind({name: table.to(device) for name, table in tables.items()})
    return builder


def random_batch(rng: random.Random) -> DraftBatch:
    """Return a uniform batch of random size, lengths and rejections, staged from the host."""
    query_len = DRAFT_TOKENS + 1
    count = rng.randint(1, 64)
    bucket = min(size for size in BUCKETS if size >= count * query_len)
    lens = [rng.randint(query_len, MAX_MODEL_LEN) for _ in range(count)]
    rejected = [rng.randint(0, query_len) for _ in range(count)]
    starts = [query_len * index for index in range(count + 1)]
    words = [torch.tensor(values, dtype=torch.int32) for values in (starts, lens, rejected)]
    return DraftBatch(count, count * query_len, *words, bucket=bucket)


def addresses(builder: DraftMetadataBuilder) -> list[tuple[str, int]]:
    """Return where every storage and every field of a builder lies."""
    storages = [("storage", tensor.data_ptr()) for tensor in builder.storages()]
    return storages + [(region.label, region.address) for region in builder.regions()]


def count_moved(before: list[tuple[str, int]], after: list[tuple[str, int]]) -> int:
    """Return how many addresses differ, and how many appeared or vanished."""
    moved = sum(old != new for old, new in zip(before, after, strict=False))
    return moved + abs(len(before) - len(after))


def main() -> int:
    """Return 1 if a word differs or an address moved."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10000)
    parser.add_argument("--tp", type=int, default=8)
    parser.add_argument("--rank", type=int, default=3)
    parser.add_argument("--oracle", choices=["cuda", "cpu"], default="cuda")
    options = parser.parse_args()
    rng = random.Random(0)
    print(card())
    rows = 300
    shape = (rows, MAX_MODEL_LEN // 64)
    tables = {
        name: torch.randint(0, 9999, shape, dtype=torch.int32, device="cuda") for name in "ab"
    }
    eager = make_builder(options.tp, options.rank, tables, options.oracle)
    graphed = make_builder(options.tp, options.rank, tables, "cuda")
    graphs = {}
    guards = GraphGuard(graphed.regions(), graphed.storages(), lambda: graphed.generation)
    for bucket in BUCKETS:
        graphs[bucket] = capture(lambda b=bucket: graphed.refresh(b), device="cuda:0", guard=guards)
        guards.watch(graphs[bucket].output, f"bucket {bucket}")
    before = addresses(eager) + addresses(graphed)
    differing = torch.zeros((), dtype=torch.int64, device="cuda")
    for step in range(options.steps):
        batch = random_batch(rng)
        eager.build_all(batch)
        graphed.stage(batch)
        graphs[batch.bucket].replay()
        for left, right in zip(eager.storages(), graphed.storages(), strict=True):
            expected = left.to(right.device).view(torch.int32)
            differing += (expected != right.view(torch.int32)).sum()
        if step % 1000 == 999:
            guards.check()
            print(f"{step + 1} steps, {int(differing)} differing words", flush=True)
    guards.check()
    moved = count_moved(before, addresses(eager) + addresses(graphed))
    print(f"{options.steps} steps: {int(differing)} differing words, {moved} addresses moved")
    return int(differing != 0 or moved != 0)


if __name__ == "__main__":
    sys.exit(main())
