"""Work plans from the host's own code, written into our buffers and without host syncs.

The installed vllm-ascend decides every argument of its metadata ops, the indexer's quant modes
among them; only where the words go, and what lengths it may ask about, is ours.
"""

from collections.abc import MutableMapping
from typing import Any

from torch import Tensor

from dsacp.sas_metadata import SAS_METADATA_SIZE


class PlanOwner:
    """Stands in for a builder as ``self`` of its plan methods, with our buffers in its place.

    Args:
        builder: the real builder; whatever is not replaced is read from it.
        replaced: attributes with other values.
    """

    def __init__(self, builder: Any, **replaced: Any) -> None:
        self.__dict__.update(replaced)
        self.__dict__["_builder"] = builder

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_builder"], name)


class _Bound:
    def __init__(self, value: int) -> None:
        self._value = value

    def item(self) -> int:
        return self._value


class HostLengths:
    """A length tensor whose maximum is a bound that the host knows.

    The ops ignore the maximum when they are given the lengths (upstream U2, U12), so asking the
    device for it would be a wait for nothing.
    """

    def __init__(self, lengths: Tensor, bound: int) -> None:
        self._lengths = lengths
        self._bound = bound

    def max(self) -> _Bound:
        """Return the bound; ``.item()`` of it does not touch the device."""
        return _Bound(self._bound)

    def clone(self) -> Tensor:
        """Return the lengths themselves: the buffer is ours and outlives the launch."""
        return self._lengths

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lengths, name)


class _Windowed:
    """A model configuration with another sliding window (DSpark's plans see K tokens more)."""

    def __init__(self, config: Any, window: int) -> None:
        self.hf_config = PlanOwner(config.hf_config, sliding_window=window)
        self._config = config

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)


def plan_attention(
    stock: Any,
    builder: Any,
    words: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    *,
    max_query_len: int,
    has_prefill: bool,
    shared: MutableMapping[str, Any],
    window: int,
) -> Tensor:
    """Let the host plan sparse attention into ``words``; returns its int32 [1024].

    Args:
        stock: the host's builder class.
        builder: our builder.
        words: int32 [1024], persistent.
        query_start_loc: int32 [B+1], rank-local starts.
        seq_lens: int32 [B], rank-local lengths.
        max_query_len: bound of the rank's query lengths, at least 1.
        has_prefill: whether the batch holds prefills.
        shared: the step's dictionary, which lets KV groups of one ratio share a plan.
        window: sliding window to plan for.
    """
    model = builder.model_config
    replaced: dict[str, Any] = {
        "common_ratio_to_sas_metadata": shared,
        "req_sas_metadata": words,
    }
    if window != model.hf_config.sliding_window:
        replaced["model_config"] = _Windowed(model, window)
    owner = PlanOwner(builder, **replaced)
    result: Tensor = stock._build_sas_metadata(
        owner,
        num_heads=model.hf_config.num_attention_heads,
        query_start_loc=query_start_loc,
        seq_lens=seq_lens,
        seq_lens_q=None,
        max_query_len=max_query_len,
        max_seq_lens=model.max_model_len,
        index_topk=model.hf_config.index_topk,
        num_reqs=seq_lens.shape[0],
        has_prefill=has_prefill,
        cu_cmp_seqlen_list=stock._get_cmp_seqlens_for_metadata(owner, has_prefill),
    )
    return result[:SAS_METADATA_SIZE]


def plan_indexer(
    stock: Any,
    builder: Any,
    words: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    *,
    max_query_len: int,
    shared: MutableMapping[str, Any],
) -> Tensor | None:
    """Let the host plan its lightning indexer into ``words``; None where a group has none."""
    owner = PlanOwner(builder, common_ratio_to_sas_metadata=shared, req_qli_metadata=words)
    result: Tensor | None = stock._build_qli_metadata(
        owner,
        query_start_loc=query_start_loc,
        seq_lens=HostLengths(seq_lens, builder.model_config.max_model_len),
        seq_lens_q=HostLengths(seq_lens, max_query_len),
        num_reqs=seq_lens.shape[0],
    )
    return result
