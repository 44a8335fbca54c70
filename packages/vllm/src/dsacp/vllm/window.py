"""The rank's slice of window metadata: which cache slots each of its tokens reads."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dsacp.core import TokenShard, Uncopied
from dsacp.drafting_cache import GroupMetadata
from dsacp.kernels import local_metadata


@dataclass(frozen=True)
class WindowKernels:
    """vLLM's own launchers, so that the rows are computed as the stock builder computes them."""

    token_to_req: Callable[..., Any]
    indices_and_lens: Callable[..., Any]


@dataclass(frozen=True)
class LocalWindow:
    """Rows of one rank, views of persistent buffers; ``n`` = the rank's padded tokens.

    Attributes:
        shard: the rank's token range.
        query_start_loc: int32 [R+1], local starts.
        seq_lens: int32 [R], lengths that the rank's last token of each request sees.
        token_to_req: int32 [n].
        valid: bool [n], False on padding and masked tokens.
        indices: int32 [n, 1, window], cache slots, -1 past the window's end.
        lens: int32 [n].
    """

    shard: TokenShard
    query_start_loc: Tensor
    seq_lens: Tensor
    token_to_req: Tensor
    valid: Tensor
    indices: Tensor
    lens: Tensor


@dataclass(frozen=True)
class RankRows:
    """What the rank's rows follow from; ``R`` requests, those that have a row in the table.

    Attributes:
        query_start_loc: int32 [R+1], local starts.
        seq_lens: int32 [R], lengths that the rank's last token of each request sees.
        block_table: int32 [R, columns].
    """

    query_start_loc: Tensor
    seq_lens: Tensor
    block_table: Tensor

    @classmethod
    def of(cls, group: GroupMetadata, num_reqs: int) -> "RankRows":
        """Take the rows of a step: padded requests have none in the framework's table."""
        return cls(
            group.local_query_start_loc[: num_reqs + 1],
            group.local_seq_lens[:num_reqs],
            group.block_table[:num_reqs],
        )


class WindowBank(Uncopied):
    """Buffers of one draft step: written slots of all tokens, read slots of the rank's.

    Args:
        max_tokens: tokens of the step, a multiple of the tensor-parallel size.
        tp_size: ranks that share them.
        window: sliding window.
        device: where the buffers live.
    """

    def __init__(self, max_tokens: int, tp_size: int, window: int, device: torch.device) -> None:
        rows = max_tokens // tp_size
        self.window = window
        self.slots = torch.full((max_tokens,), -1, dtype=torch.int64, device=device)
        self.token_to_req = torch.zeros(rows, dtype=torch.int32, device=device)
        self.valid = torch.zeros(rows, dtype=torch.bool, device=device)
        self.indices = torch.full((rows, 1, window), -1, dtype=torch.int32, device=device)
        self.lens = torch.zeros(rows, dtype=torch.int32, device=device)

    def write_slots(self, computed: Tensor, host: Tensor) -> Tensor:
        """Copy the step's slots; where the host masks a token, its mask wins.

        A token beyond max_model_len has slot -1 in the host and position 0 in its batch: the
        position alone would name a real slot.
        """
        slots = self.slots[: computed.shape[0]]
        slots.copy_(computed)
        slots[: host.shape[0]].masked_fill_(host < 0, -1)
        return slots

    def build(
        self,
        kernels: WindowKernels,
        rows: RankRows,
        shard: TokenShard,
        block_size: int,
        replay_start: Tensor,
    ) -> LocalWindow:
        """Compute the rank's rows in place; every launch is safe inside a capture."""
        local = self._rows(rows, shard)
        torch.ge(self.slots[shard.start : shard.end], 0, out=local.valid)
        if rows.seq_lens.shape[0]:
            count = shard.per_rank
            kernels.token_to_req(local.query_start_loc, self.token_to_req, count, count)
            _launch(kernels, local, self.window, rows.block_table, block_size, replay_start)
        return local

    def _rows(self, rows: RankRows, shard: TokenShard) -> LocalWindow:
        count = shard.per_rank
        return LocalWindow(
            shard=shard,
            query_start_loc=rows.query_start_loc,
            seq_lens=rows.seq_lens,
            token_to_req=self.token_to_req[:count],
            valid=self.valid[:count],
            indices=self.indices[:count],
            lens=self.lens[:count],
        )


def plain_rows(
    kernels: WindowKernels,
    host: Any,
    shard: TokenShard,
    window: int,
    block_size: int,
    replay_start: Tensor,
) -> LocalWindow:
    """Compute the rank's rows of a batch from the framework's own tensors, in new ones."""
    count, slots = host.num_reqs, host.slot_mapping
    found = local_metadata(host.query_start_loc[: count + 1], host.seq_lens[:count], shard)
    bank = WindowBank(shard.padded, shard.tp_size, window, slots.device)
    bank.slots[: slots.shape[0]] = slots[: shard.padded]
    rows = RankRows(found.query_start_loc, found.seq_lens, host.block_table_tensor[:count])
    return bank.build(kernels, rows, shard, block_size, replay_start)


def _launch(
    kernels: WindowKernels,
    local: LocalWindow,
    window: int,
    table: Tensor,
    block_size: int,
    replay_start: Tensor,
) -> None:
    visible = local.lens  # image spans, which text has none of
    kernels.indices_and_lens(
        *(local.indices, local.lens, window, window, visible, visible),
        *(local.query_start_loc, local.seq_lens, local.token_to_req, local.valid),
        *(table, block_size, replay_start),
        num_tokens=local.shard.per_rank,
        token_offset=0,
    )
