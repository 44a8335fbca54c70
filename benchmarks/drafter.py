"""Time three draft steps eager against one graph replay that also refreshes their metadata.

Run: python benchmarks/drafter.py [--json FILE]
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from drafter_model import GROUP, LAYER, Drafter, Shape
from timing import card, host_us

from dsacp.core import DraftCapacity, TokenShard, check_output, write_whole
from dsacp.drafting_cache import DraftBatch, DraftMetadataBuilder, GroupSpec
from dsacp.graph import GraphGuard, capture
from dsacp.rope_proxy import RopeConfig, RopeRegistry
from dsacp.sas_metadata import SasSpec

DRAFT_TOKENS, BLOCK, CONTEXT = 3, 64, 4096


def make_builder(num_reqs: int, table: torch.Tensor) -> DraftMetadataBuilder:
    """Return a builder with one bucket of ``num_reqs`` requests."""
    tokens = num_reqs * (DRAFT_TOKENS + 1)
    capacity = DraftCapacity.from_config(
        num_reqs, tokens, DRAFT_TOKENS, 1, (tokens,), layout="requests"
    )
    rope = RopeRegistry()
    rope.register(LAYER, RopeConfig(64, CONTEXT, 10000.0))
    groups = [GroupSpec(GROUP, BLOCK, sas=SasSpec(num_heads=64))]
    shard = TokenShard(0, 1, 0)
    builder = DraftMetadataBuilder(capacity, groups, rope, shard, "cuda", max_model_len=CONTEXT)
    builder.bind({GROUP: table})
    return builder


def measure(num_reqs: int) -> dict[str, object]:
    """Time one batch size, after checking that both ways draft the same tokens."""
    query_len = DRAFT_TOKENS + 1
    tokens, columns = num_reqs * query_len, CONTEXT // BLOCK
    table = torch.arange((num_reqs + 1) * columns, dtype=torch.int32, device="cuda")
    table = table.view(num_reqs + 1, columns)
    eager, graphed = make_builder(num_reqs, table), make_builder(num_reqs, table)
    shape = Shape()
    drafter = Drafter(shape, table.numel(), BLOCK)
    starts = torch.arange(num_reqs + 1, dtype=torch.int32, device="cuda") * query_len
    lens = torch.randint(200, CONTEXT - 8, (num_reqs,), dtype=torch.int32, device="cuda")
    rejected = torch.randint(0, query_len, (num_reqs,), dtype=torch.int32, device="cuda")
    batch = DraftBatch(num_reqs, tokens, starts, lens, rejected, bucket=tokens)
    ids = torch.randint(0, shape.vocab, (tokens,), device="cuda")
    hidden = torch.randn(tokens, shape.hidden, device="cuda", dtype=torch.bfloat16)
    sample = (starts[1:] - 1 - rejected).long()

    def run_eager() -> torch.Tensor:
        return drafter.propose(ids, hidden, sample, eager.build_all(batch))

    def captured() -> torch.Tensor:
        return drafter.propose(ids, hidden, sample, graphed.refresh(tokens))

    expected = run_eager()
    graphed.stage(batch)
    guard = GraphGuard(graphed.regions(), graphed.storages(), lambda: graphed.generation)
    graph = capture(captured, device="cuda:0", guard=guard)

    def run_graph() -> None:
        graphed.stage(batch)
        graph.replay()

    run_graph()
    torch.cuda.synchronize()
    equal = bool(torch.equal(expected, graph.output))
    times = {name: _wall_us(call) for name, call in (("eager", run_eager), ("graph", run_graph))}
    return {
        "requests": num_reqs,
        "tokens_equal": equal,
        "eager_us": times["eager"],
        "graph_us": times["graph"],
        "ratio": times["eager"] / times["graph"],
        "graph_host_us": host_us(run_graph, 50),
    }


def _wall_us(call: object) -> float:
    """Return the time of one whole step, host and device, over many steps in a row."""
    assert callable(call)
    for _ in range(5):
        call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(50):
        call()
    end.record()
    end.synchronize()
    return 1e3 * start.elapsed_time(end) / 50


def main() -> int:
    """Print a row a batch size; return 1 if eager and graph drafted different tokens."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    check_output("--json", options.json)
    torch.manual_seed(0)
    rows = []
    print(card())
    with torch.no_grad():
        for num_reqs in (1, 4, 16, 64):
            rows.append(measure(num_reqs))
            print(rows[-1], flush=True)
    if options.json:
        write_whole(options.json, json.dumps({"card": card(), "rows": rows}, indent=1))
    return int(not all(row["tokens_equal"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
