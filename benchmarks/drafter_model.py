"""A drafter of DeepSeek-V4 shape for timing: one window layer, a dense MLP in place of its MoE."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from dsacp.app.model.caches import PagedCache
from dsacp.app.model.ops import rope_rows, rotate
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
        self.cache = PagedCache.allocate(
            num_blocks, block_size, shape.head_dim, torch.bfloat16, torch.device("cuda")
        )
        # queries of random lengths look back at rows that no step has written
        self.cache.storage.zero_()

    def step(self, ids: Tensor, hidden: Tensor, step: StepMetadata) -> Tensor:
        """Run the layer over one draft step; return the hidden states of this rank's rows."""
        shape, group = self.shape, step.groups[GROUP]
        x = torch.cat((self.embedding[ids], hidden), -1) @ self.mix
        normed = rms_norm(x, (shape.hidden,))
        assert group.slot_mapping is not None
        keys = rms_norm(normed @ self.kv, (shape.head_dim,))
        self.cache.write(group.slot_mapping, rotate(keys, *rope_rows(step.rope, LAYER)))
        local = normed[step.shard.start : step.shard.end]
        queries = (local @ self.query_down) @ self.query_up
        queries = queries.view(-1, shape.heads, shape.head_dim)
        queries = rms_norm(queries, (shape.head_dim,))
        queries = rotate(queries, *rope_rows(step.local_rope, LAYER))
        mixed = sparse_attention(
            queries,
            self.cache.pages,
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
