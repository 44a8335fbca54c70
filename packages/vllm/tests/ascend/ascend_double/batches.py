"""Random batches in the shapes that runner v1 and its proposer give to a builder."""

import math
import random
from dataclasses import dataclass
from typing import Any

import torch

from ascend_double.host import BLOCK, MAX_MODEL_LEN, HostDouble, install
from dsacp.core import round_up

COLUMNS = MAX_MODEL_LEN // BLOCK + 1
KINDS = ("decode", "verify", "mixed", "graph", "dummy")
STALE = 1717
"""What an earlier step left in the tail of the host's position buffer."""


@dataclass(frozen=True)
class Batch:
    """One engine step.

    Attributes:
        kind: how the batch came about.
        lengths: query tokens a request.
        contexts: tokens before the step.
        tokens: padded tokens.
        rows: padded requests.
        prefilling: which requests still prefill.
        rejected: draft tokens that verification refused.
    """

    kind: str
    lengths: tuple[int, ...]
    contexts: tuple[int, ...]
    tokens: int
    rows: int
    prefilling: tuple[bool, ...]
    rejected: tuple[int, ...]

    @property
    def real(self) -> int:
        """Requests without padding."""
        return len(self.lengths)

    @property
    def graph(self) -> bool:
        """Whether the host would replay a FULL graph."""
        return self.kind == "graph"


def draw(rng: random.Random, host: HostDouble, rejecting: bool = False) -> Batch:
    """Draw a batch that fits the host's configuration."""
    kind = rng.choice(KINDS)
    k1, tp = host.drafts + 1, host.tp_size
    most = min(host.max_num_seqs, host.max_num_batched_tokens // k1)
    real = rng.randint(1, most)
    prefill = kind in ("mixed", "dummy")
    lengths = [1 if kind == "decode" else k1] * real
    prefilling = [False] * real
    if prefill:
        lengths = [rng.choice((1, k1)) for _ in range(real)]
        budget = host.max_num_batched_tokens - k1 * real
        for index in range(rng.randint(0, real), real):
            lengths[index] = 1 + rng.randint(0, max(budget // real, 0))
            prefilling[index] = True
    total = sum(lengths)
    tokens, rows = total, real
    if kind == "graph":
        grid = math.lcm(k1, tp)
        tokens = round_up(total + k1 * rng.randint(0, 2), grid)
        if tokens > host.max_num_batched_tokens:
            kind, tokens = "verify", total
        rows = tokens // k1
    elif kind == "dummy":
        tokens = min(round_up(total, tp), round_up(host.max_num_batched_tokens, tp))
        rows = real + (1 if tokens > total else 0)
    contexts = [_context(rng, length) for length in lengths]
    rejected = [rng.randint(0, n - 1) if rejecting and n <= k1 else 0 for n in lengths]
    return Batch(
        kind, tuple(lengths), tuple(contexts), tokens, rows, tuple(prefilling), tuple(rejected)
    )


def _context(rng: random.Random, length: int) -> int:
    limit = MAX_MODEL_LEN - length - 8
    return rng.choice((0, rng.randint(0, 200), rng.randint(0, limit)))


def common_metadata(batch: Batch, host: HostDouble, rng: random.Random) -> Any:
    """Return the host's common metadata of a batch, in tensors of its own."""
    modules = install()
    starts = [0]
    for length in batch.lengths:
        starts.append(starts[-1] + length)
    step = host.drafts + 1
    while len(starts) <= batch.rows:
        starts.append(min(starts[-1] + step, batch.tokens))
    starts[-1] = max(starts[-1], batch.tokens) if batch.rows > batch.real else starts[-1]
    lens = [c + q for c, q in zip(batch.contexts, batch.lengths, strict=True)]
    lens += [0] * (batch.rows - batch.real)
    positions = [
        c + i for c, q in zip(batch.contexts, batch.lengths, strict=True) for i in range(q)
    ]
    table = _table(batch, rng)
    owners = [row for row, q in enumerate(batch.lengths) for _ in range(q)]
    slots = [
        int(table[row, position // BLOCK]) * BLOCK + position % BLOCK
        for row, position in zip(owners, positions, strict=True)
    ]
    buffer = torch.full((host.max_num_batched_tokens + 64,), STALE, dtype=torch.int64)
    buffer[: len(positions)] = torch.tensor(positions)
    flat = torch.full((batch.tokens,), -1, dtype=torch.int32)
    flat[: len(slots)] = torch.tensor(slots, dtype=torch.int32)
    cpu_starts = torch.tensor(starts, dtype=torch.int32)
    cpu_lens = torch.tensor(lens, dtype=torch.int32)
    state = modules.states.AscendAttentionState
    common = modules.utils.AscendCommonAttentionMetadata(
        query_start_loc=cpu_starts.clone(),
        query_start_loc_cpu=cpu_starts.clone(),
        seq_lens=cpu_lens.clone(),
        seq_lens_cpu=cpu_lens.clone(),
        num_reqs=batch.rows,
        num_actual_tokens=sum(batch.lengths),
        max_query_len=max(batch.lengths),
        max_seq_len=max(lens),
        block_table_tensor=table,
        slot_mapping=flat,
        positions=buffer,
        num_input_tokens=batch.tokens,
        attn_state=state.ChunkedPrefill if any(batch.prefilling) else state.SpecDecoding,
        is_prefilling=torch.tensor(
            [*batch.prefilling, *[False] * (batch.rows - batch.real)], dtype=torch.bool
        ),
        num_computed_tokens_cpu=None,
    )
    # a field of the base class in the vLLM that upstream pairs with; gone in the one here
    common._seq_lens_cpu = cpu_lens.clone()
    return common


def _table(batch: Batch, rng: random.Random) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    table = torch.randint(1, 9000, (batch.rows, COLUMNS), dtype=torch.int32, generator=generator)
    table[batch.real :] = 0
    return table


def sampled_positions(batch: Batch, common: Any) -> torch.Tensor:
    """Return the position of every request's last accepted token, int64 [real]."""
    starts = common.query_start_loc[: batch.real + 1]
    rejected = torch.tensor(batch.rejected, dtype=torch.int32)
    positions: torch.Tensor = common.positions[(starts[1:] - 1 - rejected).long()]
    return positions


def advance(
    proposer: Any, index: int, common: Any, batch: Batch, positions: torch.Tensor
) -> tuple[Any, Any]:
    """Run upstream's own advance to draft step ``index``; returns its common metadata and ours."""
    from vllm.config import CUDAGraphMode

    mode = CUDAGraphMode.FULL if batch.graph else CUDAGraphMode.NONE
    result: tuple[Any, Any] = proposer.advance(
        index, common, batch.real, batch.tokens, positions, mode, attn_group=proposer.group
    )
    return result
