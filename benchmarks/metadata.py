"""Time the metadata of all draft steps and the SAS plans on a CUDA device.

Run: python benchmarks/metadata.py [--json FILE]
"""

import argparse
import json
from functools import partial
from pathlib import Path

import torch
from timing import card, graph_us, host_us

from dsacp.core import DraftCapacity, TokenShard, check_output, write_whole
from dsacp.drafting_cache import BoundInputs, DraftBatch, DraftMetadataBuilder, GroupSpec
from dsacp.graph import LaunchCounter
from dsacp.kernels import plan_table, sas_plan
from dsacp.rope_proxy import RopeConfig, RopeRegistry
from dsacp.sas_metadata import SasPolicy, SasSpec, plan_sas

DRAFT_TOKENS, TP, MAX_MODEL_LEN = 3, 8, 65536
DEVICE = torch.device("cuda")
SPECS = {
    "window": SasSpec(num_heads=64),
    "c4": SasSpec(num_heads=64, cmp_ratio=4, cmp_topk=512),
    "c128": SasSpec(num_heads=64, cmp_ratio=128),
}
POLICIES: tuple[SasPolicy, ...] = ("upstream", "balanced")
BATCHES = (
    ("one request", 4, 1),
    ("256x1", 1, 256),
    ("64x4", 4, 64),
    ("64k prefill", 65536, 1),
    ("16384x1", 1, 16384),
)
"""Name, query tokens a request, requests."""


def builder(
    num_reqs: int, num_groups: int, plans: bool, read: DraftBatch | None = None
) -> DraftMetadataBuilder:
    """Return a builder whose one bucket holds ``num_reqs`` requests of K+1 tokens.

    With ``read`` its inputs are bound and hold that batch for every ``refresh``; a staged batch is
    there for one.
    """
    tokens = num_reqs * (DRAFT_TOKENS + 1)
    capacity = DraftCapacity.from_config(
        num_reqs, tokens, DRAFT_TOKENS, TP, (tokens,), layout="requests"
    )
    registry = RopeRegistry()
    registry.register("mtp", RopeConfig(64, MAX_MODEL_LEN, 10000.0))
    spec = SasSpec(num_heads=64) if plans else None
    groups = [GroupSpec(f"draft{index}", 128, sas=spec) for index in range(num_groups)]
    made = DraftMetadataBuilder(
        capacity, groups, registry, TokenShard(0, TP, 3), DEVICE, max_model_len=MAX_MODEL_LEN
    )
    rows = capacity.max_reqs
    shape = (rows, MAX_MODEL_LEN // 128)
    made.bind(
        {
            group.name: torch.randint(0, 4096, shape, dtype=torch.int32, device=DEVICE)
            for group in groups
        },
        None if read is None else bound(read, rows),
    )
    return made


def bound(read: DraftBatch, rows: int) -> BoundInputs:
    """Return persistent inputs of ``rows`` requests that hold a batch."""
    sizes = (rows + 1, rows, rows, 1)
    inputs = BoundInputs(*(torch.zeros(n, dtype=torch.int32, device=DEVICE) for n in sizes))
    for name in ("query_start_loc", "seq_lens", "num_rejected"):
        values = getattr(read, name)
        getattr(inputs, name)[: values.numel()].copy_(values)
    inputs.num_reqs.fill_(read.num_reqs)
    return inputs


def batch(num_reqs: int) -> DraftBatch:
    """Return a verified batch of uneven lengths and rejections."""
    query_len = DRAFT_TOKENS + 1
    starts = torch.arange(num_reqs + 1, dtype=torch.int32, device=DEVICE) * query_len
    lens = torch.randint(query_len, 60000, (num_reqs,), dtype=torch.int32, device=DEVICE)
    rejected = torch.randint(0, query_len, (num_reqs,), dtype=torch.int32, device=DEVICE)
    tokens = num_reqs * query_len
    return DraftBatch(num_reqs, tokens, starts, lens, rejected, bucket=tokens)


def time_steps(num_reqs: int, num_groups: int) -> dict[str, object]:
    """Time one shape: device time inside a graph, host time eager, launches."""
    rotation = 4 if num_reqs <= 4096 else 1
    inputs = batch(num_reqs)
    builders = [builder(num_reqs, num_groups, False, read=inputs) for _ in range(rotation)]
    staged = builder(num_reqs, num_groups, plans=False)
    staged.build_all(inputs)
    bucket = inputs.num_tokens
    for made in builders:
        made.refresh(bucket)
    with LaunchCounter() as refresh_counter:
        builders[0].refresh(bucket)
    with LaunchCounter() as build_counter:
        staged.build_all(inputs)
    return {
        "requests": num_reqs,
        "groups": num_groups,
        "device_us": graph_us([partial(made.refresh, bucket) for made in builders]),
        "host_us": host_us(partial(builders[0].refresh, bucket)),
        "host_with_staging_us": host_us(partial(staged.build_all, inputs)),
        "launches_refresh": refresh_counter.count,
        "launches_with_staging": build_counter.count,
    }


def plan_batch(query_len: int, num_reqs: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return query starts and uneven lengths of ``num_reqs`` requests."""
    starts = torch.arange(num_reqs + 1, dtype=torch.int32, device=DEVICE) * query_len
    lens = torch.randint(query_len, 70000, (num_reqs,), dtype=torch.int32, device=DEVICE)
    return starts, lens


def time_plan(name: str, query_len: int, num_reqs: int, policy: SasPolicy) -> dict[str, object]:
    """Time one SAS plan on the device."""
    starts, lens = plan_batch(query_len, num_reqs)
    row: dict[str, object] = {"batch": name, "policy": policy}
    for label, spec in SPECS.items():
        outs = [torch.empty(1024, dtype=torch.int32, device=DEVICE) for _ in range(8)]
        calls = [partial(plan_sas, spec, starts, lens, policy=policy, out=out) for out in outs]
        row[label + "_us"] = graph_us(calls)
    return row


def time_table(num_plans: int, num_reqs: int, policy: SasPolicy) -> dict[str, object]:
    """Time one launch of a table on the device, every plan with a batch of its own."""
    batches = [plan_batch(1, num_reqs) for _ in range(num_plans)]
    starts, lens = (torch.cat(parts) for parts in zip(*batches, strict=True))
    row: dict[str, object] = {"batch": f"{num_plans} plans of {num_reqs}x1", "policy": policy}
    for label, spec in SPECS.items():
        plans = [
            spec.plan_row(index * (num_reqs + 1), index * num_reqs, index * 1024, num_reqs, policy)
            for index in range(num_plans)
        ]
        out = torch.empty(num_plans * 1024, dtype=torch.int32, device=DEVICE)
        call = partial(sas_plan, starts, lens, out, plan_table(plans, DEVICE))
        row[label + "_us"] = graph_us([call])
    return row


def main() -> None:
    """Print both tables, and write them as JSON when asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    check_output("--json", options.json)
    torch.manual_seed(0)
    result: dict[str, object] = {"card": card(), "steps": [], "plans": []}
    print(result["card"])
    shapes = [(8, 1), (64, 1), (256, 1), (256, 4), (1024, 1), (4096, 1), (16384, 1)]
    steps = []
    for num_reqs, num_groups in shapes:
        steps.append(time_steps(num_reqs, num_groups))
        print(steps[-1], flush=True)
    plans = []
    for policy in POLICIES:
        for name, query_len, num_reqs in BATCHES:
            plans.append(time_plan(name, query_len, num_reqs, policy))
            print(plans[-1], flush=True)
        plans.append(time_table(12, 256, policy))
        print(plans[-1], flush=True)
    result.update(steps=steps, plans=plans)
    if options.json:
        write_whole(options.json, json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
