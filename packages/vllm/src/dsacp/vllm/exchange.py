"""All-to-all between head-sharded and token-sharded activations of a tensor-parallel group."""

from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

ALL_TO_ALLS = "all_to_alls"


def _all_to_all(blocks: Tensor, group: Any, counts: Counter[str]) -> Tensor:
    """Exchange ``blocks`` [tp, ...]: block i goes to rank i, block j of the result is rank j's."""
    received = torch.empty_like(blocks)
    dist.all_to_all_single(received, blocks, group=group)
    counts[ALL_TO_ALLS] += 1
    return received


def heads_to_tokens(x: Tensor, tp_size: int, group: Any, counts: Counter[str]) -> Tensor:
    """Turn [Tp, heads / tp, D] of all tokens into [Tp / tp, heads, D] of this rank's tokens.

    ``Tp`` is a multiple of ``tp_size``; rank r owns the r-th block of tokens and of heads. Every
    collective is counted in ``counts``.
    """
    if tp_size == 1:
        return x
    tokens, heads, dim = x.shape
    blocks = x.reshape(tp_size, tokens // tp_size, heads, dim).contiguous()
    received = _all_to_all(blocks, group, counts)
    return received.permute(1, 0, 2, 3).reshape(tokens // tp_size, tp_size * heads, dim)


def tokens_to_heads(x: Tensor, tp_size: int, group: Any, counts: Counter[str]) -> Tensor:
    """Undo ``heads_to_tokens``: [Tp / tp, heads, D] into [Tp, heads / tp, D]."""
    if tp_size == 1:
        return x
    tokens, heads, dim = x.shape
    blocks = x.reshape(tokens, tp_size, heads // tp_size, dim).permute(1, 0, 2, 3).contiguous()
    return _all_to_all(blocks, group, counts).reshape(tp_size * tokens, heads // tp_size, dim)
