"""Puts views of a bank into the host's own dataclasses."""

from dataclasses import fields
from typing import Any

from torch import Tensor

from dsacp.vllm.ascend.call import Call, Plans
from dsacp.vllm.ascend.fill import staged_lengths, staged_starts
from dsacp.vllm.ascend.plans import PlanOwner
from dsacp.vllm.ascend.rope import rope_views

Counts = tuple[int, int, int, int]


def assemble(call: Call, table: Tensor, counts: Counts, plans: Plans) -> Any:
    """Return the host's metadata of a build.

    Args:
        call: the build.
        table: block table of the call's rows.
        counts: decodes, prefills, decode tokens and prefill tokens.
        plans: work plans.
    """
    builder, bank, shape, common = call.builder, call.bank, call.shape, call.common
    cos, sin = rope_views(bank, call.host.rope.RopeDataProxy, shape.tokens, shape.shard.padded)
    request = {
        "input_positions": bank.positions[: shape.tokens],
        "block_table": table,
        "seq_lens": staged_lengths(bank)[: shape.rows],
        "slot_mapping": _slots(call),
        "block_size": call.block_size,
        "query_start_loc": staged_starts(bank)[: shape.rows + 1],
        "cp_metadata": _context_parallel(call, cos, sin),
        "cache_group_key": getattr(builder, "cache_group_key", ""),
        "sin": sin,
        "cos": cos,
        "start_pos": bank.local.start_pos[: shape.rows],
        "sas_metadata": plans.sas,
        "qli_metadata": plans.qli,
        "ori_win_left": plans.window_left,
        "ori_win_right": 0,
        "dspark_swa_indices": plans.dspark,
        **({} if call.drafting else _compressed(call, counts[1] > 0)),
    }
    whole = {
        "num_input_tokens": shape.tokens,
        "num_actual_tokens": common.num_actual_tokens,
        "head_dim": builder.model_config.get_head_size(),
        "num_decodes": counts[0],
        "num_prefills": counts[1],
        "num_decode_tokens": counts[2],
        "attn_state": call.attn_state,
        "req_metadata": _make(call.host.req_class, request),
        "query_start_loc": request["query_start_loc"],
        "block_tables": None,
        "seq_lens": request["seq_lens"],
        "cos": cos,
        "sin": sin,
        "hadamard": None if call.drafting else _hadamard(call.stock),
    }
    return _make(builder.metadata_cls, whole)


def _make(owner: type[Any], values: dict[str, Any]) -> Any:
    known = {field.name for field in fields(owner)}
    return owner(**{name: value for name, value in values.items() if name in known})


def _slots(call: Call) -> Tensor | None:
    if call.builder.compressor_ratio > 1:
        return None
    return call.bank.slots[: call.common.num_actual_tokens]


def _context_parallel(call: Call, cos: Any, sin: Any) -> Any:
    shard, local = call.shape.shard, call.bank.local
    values = {
        "local_query_start_loc": local.query_start_loc[: call.shape.rows + 1],
        "local_seq_lens": local.seq_lens[: call.shape.rows],
        "local_start": shard.start,
        "local_end": shard.end,
        "tokens_per_rank": shard.per_rank,
        "num_tokens_pad": shard.padded,
        "local_sin": sin.pad_to(shard.padded)[shard.start : shard.end],
        "local_cos": cos.pad_to(shard.padded)[shard.start : shard.end],
    }
    return _make(call.host.cp_class, values)


def _compressed(call: Call, has_prefill: bool) -> dict[str, Any]:
    """Return what the compressors of a target's layer read; the tables are the host's own."""
    builder, ratio = call.builder, call.builder.compressor_ratio
    values: dict[str, Any] = {
        "num_reqs_actual": call.shape.real_reqs,
        "cu_cmp_seqlen_list": call.stock._get_cmp_seqlens_for_metadata(builder, has_prefill),
    }
    if ratio > 1:
        cos, sin = call.host.full_rope(f"c{ratio}")
        owner = PlanOwner(builder, num_actual_tokens=call.common.num_actual_tokens)
        values["num_compressed_tokens"] = call.stock._num_compressor_metadata_rows(
            owner, call.common
        )
        values["full_compress_cos"], values["full_compress_sin"] = cos, sin
    return values


def _hadamard(stock: type[Any]) -> Tensor | None:
    matrix: Tensor | None = stock.hadamard
    return matrix
