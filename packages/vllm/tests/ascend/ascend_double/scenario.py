"""The scenario of vllm-ascend #16168, driven as upstream's proposer drives it."""

import random
from dataclasses import fields
from typing import Any

from torch import Tensor

from ascend_double.batches import BLOCK, Batch, advance, common_metadata, sampled_positions
from ascend_double.host import HostDouble, install


def concurrency(
    contexts: tuple[int, ...] = (96, 53, 5), rejected: tuple[int, ...] = (0, 0, 0)
) -> Batch:
    """Return three verify requests in a captured bucket of 16 tokens, K=3 (vllm-ascend #16168)."""
    return Batch("graph", (4, 4, 4), contexts, 16, 4, (False,) * 3, rejected)


def host(tp: int = 4, rank: int = 0) -> HostDouble:
    return HostDouble(3, tp, rank, max_num_seqs=6, max_num_batched_tokens=64, capture_sizes=(16,))


def stock() -> type[Any]:
    cls: type[Any] = install().dsa_cp.AscendDSACPMetadataBuilder
    return cls


def run(builder: Any, double: HostDouble, batch: Batch, seed: int = 0) -> list[Any]:
    """Build the drafter's K steps as upstream's proposer does; returns their metadata."""
    common = common_metadata(batch, double, random.Random(seed))
    steps = [builder.build(0, common, None, common_ratio_to_sas_metadata={}, block_size=BLOCK)]
    proposer, positions = double.proposer(builder), sampled_positions(batch, common).clone()
    for index in range(1, double.drafts):
        common, metadata = advance(proposer, index, common, batch, positions)
        steps.append(metadata)
    return steps


def addresses(metadata: Any) -> dict[str, int]:
    """Return the address of every tensor that attention reads in a draft step."""
    found = {}
    for owner in (metadata.req_metadata, metadata.req_metadata.cp_metadata):
        for field in fields(owner):
            value = getattr(owner, field.name)
            if isinstance(value, Tensor) and value.numel():
                found[field.name] = value.data_ptr()
            elif type(value).__name__.endswith(("RopeDataProxy", "BankedRope")):
                found[field.name] = value["model.layers.0.attn"].data_ptr()
    return found
