"""Torch versions of the Triton kernels that vLLM's DeepSeek-V4 metadata builders launch.

Installed only where vLLM found no Triton; the signatures are those of the launchers they replace.
"""

from typing import Any

import torch
from torch import Tensor


def swa_indices_and_lens(
    swa_indices: Tensor,
    swa_lens: Tensor,
    window_size: int,
    index_width: int,
    left_visible: Tensor,  # noqa: ARG001 - part of the launcher's signature
    right_visible: Tensor,  # noqa: ARG001 - part of the launcher's signature
    query_start_loc: Tensor,
    seq_lens: Tensor,
    token_to_req_indices: Tensor,
    is_valid_token: Tensor,
    block_table: Tensor,
    block_size: int,
    replay_start: Tensor,
    *,
    num_tokens: int,
    token_offset: int,
    has_image: bool = False,
) -> None:
    """Cache slots of each token's causal window, -1 behind the window's end; text only."""
    if has_image:
        raise NotImplementedError("image spans need vLLM's Triton kernel; the CPU kit is text only")
    rows = slice(token_offset, token_offset + num_tokens)
    req = token_to_req_indices[rows].long()
    last = seq_lens[req] - query_start_loc[req + 1] + torch.arange(rows.start, rows.stop)
    first = torch.maximum((last - window_size + 1).clamp(min=0), replay_start[req])
    count = torch.where(is_valid_token[rows], last + 1 - first, 0)
    offset = torch.arange(index_width)
    slot = _slots(block_table, req[:, None], (first[:, None] + offset).long(), block_size)
    slot = torch.where(offset < count[:, None], slot, -1).to(swa_indices.dtype)
    swa_indices[:num_tokens].view(num_tokens, -1)[:, :index_width] = slot
    swa_lens[:num_tokens] = count.to(swa_lens.dtype)


def _slots(block_table: Tensor, req: Tensor, where: Tensor, block_size: int) -> Tensor:
    """Slot of each position; positions past the table's width give one that is not used."""
    column = (where // block_size).clamp(max=block_table.shape[1] - 1)
    return block_table[req, column].long() * block_size + where % block_size


def token_to_req_indices(
    query_start_loc: Tensor, out: Tensor, num_mapped_tokens: int, num_tokens: int
) -> Tensor:
    """Request of each token by binary search over the query starts; 0 past the mapped tokens."""
    token = torch.arange(num_tokens, dtype=query_start_loc.dtype)
    req = torch.searchsorted(query_start_loc[1:].contiguous(), token, right=True)
    req = req.clamp(max=query_start_loc.shape[0] - 2)
    out[:num_tokens] = torch.where(token < num_mapped_tokens, req, 0).to(out.dtype)
    return out[:num_tokens]


def compressed_slot_mapping(
    num_tokens: int,
    slot_mapping: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    block_size: int,
    ratio: int,
    out: Tensor | None = None,
    dcp_world_size: int = 1,
    cp_interleave: int = 1,  # noqa: ARG001 - part of the launcher's signature
) -> Tensor:
    """Slot of the compressed state that each token closes, -1 for a token that closes none."""
    if dcp_world_size != 1:
        raise NotImplementedError("decode context parallelism needs vLLM's Triton kernel")
    out = torch.empty(num_tokens, dtype=torch.int64) if out is None else out
    out.fill_(-1)
    starts = query_start_loc[: block_table.shape[0] + 1]
    token = torch.arange(min(int(starts[-1]), num_tokens))
    req = torch.searchsorted(starts[1:].contiguous(), token.to(starts.dtype), right=True)
    position = (seq_lens[req] - starts[req + 1] + token).long()
    closes = ((position + 1) % ratio == 0) & (slot_mapping[: len(token)] != -1) & (position >= 0)
    slot = _slots(block_table, req, position.clamp(min=0) // ratio, block_size)
    out[: len(token)] = torch.where(closes, slot, -1)
    return out[:num_tokens]


def prefill_gather_lens(
    out: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    replay_start: Tensor,
    num_prefills: int,
    num_decodes: int,
    window: int,
) -> None:
    """Window context plus new tokens of each prefill request."""
    rows = slice(num_decodes, num_decodes + num_prefills)
    query = query_start_loc.diff()[rows]
    context = (seq_lens[rows] - query - replay_start[rows]).clamp(0, window - 1)
    out[:num_prefills] = query + context


def uniform_decode(
    seq_lens: Tensor,
    token_seq_lens: Tensor,
    block_table: Tensor,
    token_block_table: Tensor,
    token_lens: Tensor,
    num_tokens: int,
    query_len: int,
) -> None:
    """Expand a uniform multi-token decode into one row a token for the indexer."""
    token = torch.arange(num_tokens)
    req = token // query_len
    token_seq_lens[:num_tokens] = (seq_lens[req] - query_len + token % query_len + 1).clamp(min=0)
    token_block_table[:num_tokens, : block_table.shape[1]] = block_table[req]
    token_lens[:num_tokens] = 1


def no_prefill_chunk(*_args: Any, **_kwargs: Any) -> None:
    """The indexer needs no chunks while every compressed state fits into its top-k."""


def install_builder_kernels() -> None:
    """Put the torch versions where the builders look their kernels up; idempotent."""
    from vllm.models.deepseek_v4 import sparse_mla
    from vllm.v1.attention.backends.mla import compressor_utils, indexer
    from vllm.v1.attention.backends.mla import sparse_swa as swa
    from vllm.v1.attention.ops import metadata

    swa._COMPUTE_SWA_INDICES_AND_LENS_KERNEL = swa_indices_and_lens
    swa._COMPUTE_PREFILL_METADATA_KERNEL = prefill_gather_lens
    metadata.compute_token_to_req_indices = token_to_req_indices
    swa.compute_token_to_req_indices = token_to_req_indices
    for module in (compressor_utils, indexer, sparse_mla):
        module.get_compressed_slot_mapping = compressed_slot_mapping
    indexer._PREPARE_UNIFORM_DECODE_KERNEL = uniform_decode
    indexer.build_prefill_chunk_metadata = no_prefill_chunk
