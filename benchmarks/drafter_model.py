"""A drafter of DeepSeek-V4 shape for timing: one window layer, a dense MLP in place of its MoE."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from dsacp.drafting_cache import StepMetadata
from dsacp.kernels import sparse_attention

LAYER = "mtp"
GROUP = "draft"


@dataclass(frozen=True)
class Shape:
    """Sizes of DeepSeek-V4-Flash's MTP layer; the vocabulary is one tensor-parallel shard of 8."""

    hidden: int = 4096
    heads: int = 64
    head_dim: int = 512
    rope_dim: int = 64
    window: int = 128
    query_rank: int = 1024
    output_groups: int = 8
    output_rank: int = 1024
    mlp: int = 4096
    vocab: int = 16160


class Drafter:
    """Random bf16 weights and one paged cache; every shape is fixed by the metadata."""

    def __init__(self, shape: Shape, num_blocks: int, block_size: int) -> None:
        self.shape = shape
        wide = shape.heads * shape.head_dim

        def weight(rows: int, columns: int) -> Tensor:
            scale = rows**-0.5
            return torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16) * scale

        self.embedding = weight(shape.vocab, shape.hidden)
        self.mix = weight(2 * shape.hidden, shape.hidden)
        self.query_down = weight(shape.hidden, shape.query_rank)
        self.query_up = weight(shape.query_rank, wide)
        self.kv = weight(shape.hidden, shape.head_dim)
        self.output_down = torch.stack(
            [weight(wide // shape.output_groups, shape.output_rank)] * shape.output_groups
        )
        self.output_up = weight(shape.output_groups * shape.output_rank, shape.hidden)
        self.gate_up = weight(shape.hidden, 2 * shape.mlp)
        self.down = weight(shape.mlp, shape.hidden)
        self.head = weight(shape.hidden, shape.vocab)
        self.sinks = torch.zeros(shape.heads, device="cuda")
        # one page more than the tables name: where padding writes
        self.cache = torch.zeros(
            num_blocks + 1, block_size, 1, shape.head_dim, device="cuda", dtype=torch.bfloat16
        )

    def step(self, ids: Tensor, hidden: Tensor, step: StepMetadata) -> Tensor:
        """Run the layer over one draft step; return the hidden states of this rank's rows."""
        shape, group = self.shape, step.groups[GROUP]
        x = torch.cat((self.embedding[ids], hidden), -1) @ self.mix
        normed = rms_norm(x, (shape.hidden,))
        self._write(rms_norm(normed @ self.kv, (shape.head_dim,)), step)
        local = normed[step.shard.start : step.shard.end]
        queries = (local @ self.query_down) @ self.query_up
        queries = queries.view(-1, shape.heads, shape.head_dim)
        queries = self._rotate(rms_norm(queries, (shape.head_dim,)), step.local_rope)
        mixed = sparse_attention(
            queries,
            self.cache,
            group.block_table,
            group.local_query_start_loc,
            group.local_seq_lens,
            self.sinks,
            scale=shape.head_dim**-0.5,
            window_left=shape.window - 1,
            sas_metadata=group.sas_metadata,
            num_cores=24,
        )
        groups = mixed.view(-1, shape.output_groups, mixed[0].numel() // shape.output_groups)
        down = torch.einsum("tgi,gio->tgo", groups, self.output_down)
        x = x[step.shard.start : step.shard.end] + down.flatten(1) @ self.output_up
        gate, up = (rms_norm(x, (shape.hidden,)) @ self.gate_up).chunk(2, -1)
        return x + (silu(gate) * up) @ self.down

    def _write(self, keys: Tensor, step: StepMetadata) -> None:
        slots = step.groups[GROUP].slot_mapping
        assert slots is not None
        flat = self.cache.view(-1, self.shape.head_dim)
        last = flat.shape[0] - 1
        flat[torch.where(slots < 0, last, slots).long()] = self._rotate(keys, step.rope)

    def _rotate(self, x: Tensor, rope: object) -> Tensor:
        cos, sin = rope.cos[LAYER].to(x.dtype), rope.sin[LAYER].to(x.dtype)  # type: ignore[attr-defined]
        if x.dim() == 3:
            cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        plain, pairs = x[..., : -self.shape.rope_dim], x[..., -self.shape.rope_dim :]
        swapped = torch.stack((-pairs[..., 1::2], pairs[..., 0::2]), -1).flatten(-2)
        return torch.cat((plain, pairs * cos + swapped * sin), -1)

    def propose(
        self, ids: Tensor, hidden: Tensor, sample: Tensor, steps: tuple[StepMetadata, ...]
    ) -> Tensor:
        """Draft as many tokens as there are steps; tp=1, so every row is this rank's."""
        state = self.step(ids, hidden, steps[0])[sample]
        drafts = []
        for index in range(len(steps)):
            tokens = (state @ self.head).argmax(-1)
            drafts.append(tokens)
            if index + 1 < len(steps):
                state = self.step(tokens, state, steps[index + 1])
        return torch.stack(drafts, 1)
