"""vllm-ascend's metadata ops, declared with their real schemas and answered by our references.

The schemas are read from the wheel's own binary, so the dispatcher refuses a call that the real
op would refuse. Answers are new tensors whose unwritten words hold garbage, as on the device.
"""

import importlib.util
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dsacp.kernels import compressor_rows
from dsacp.sas_metadata import QliSpec, SasSpec, plan_qli, plan_sas

CORES = 24
GARBAGE = 0x7FFF_FFFF
NAMES = (
    "npu_sparse_attn_sharedkv_metadata",
    "npu_kv_quant_sparse_attn_sharedkv_metadata",
    "npu_vllm_quant_lightning_indexer_metadata",
    "compressor_metadata",
)
CALLS: list[tuple[str, dict[str, Any]]] = []
"""Every call since a test cleared it: name and all arguments, tensors as they were."""


def record(name: str, arguments: dict[str, Any]) -> None:
    """Note a call; buffers are written again later, so tensors are copied."""
    kept = {
        key: value.clone() if isinstance(value, Tensor) else value
        for key, value in arguments.items()
    }
    CALLS.append((name, kept))


def real_schemas() -> dict[str, str]:
    """Read the ops' schemas out of the installed wheel's binary."""
    found = importlib.util.find_spec("vllm_ascend")
    assert found is not None
    assert found.origin is not None
    (binary,) = Path(found.origin).parent.glob("vllm_ascend_C*.so")
    content = binary.read_bytes()
    schemas = {}
    for name in NAMES:
        match = re.search(rb"(?<![\w])" + name.encode() + rb"\([^\x00]*\) -> [^\x00]*", content)
        assert match is not None, f"no schema of {name} in {binary.name}"
        schemas[name] = match.group().decode()
    return schemas


def install_ops() -> torch.library.Library:
    """Declare and answer the ops; the library must be kept alive by the caller."""
    library = torch.library.Library("_C_ascend", "FRAGMENT")
    answers = {
        NAMES[0]: answer_sas_a2,
        NAMES[1]: answer_sas_a5,
        NAMES[2]: answer_qli,
        NAMES[3]: answer_compressor,
    }
    for name, schema in real_schemas().items():
        library.define(schema)
        library.impl(name, answers[name], "CompositeExplicitAutograd")
    return library


def answer_sas_a2(num_heads_q: int, num_heads_kv: int, head_dim: int, *rest: Any, **kw: Any) -> Any:
    """Answer the A2 op."""
    given = {"num_heads_q": num_heads_q, "num_heads_kv": num_heads_kv, "head_dim": head_dim}
    return _sas("a2", NAMES[0], given, rest, kw)


def answer_sas_a5(
    num_heads_q: int, num_heads_kv: int, head_dim: int, kv_quant_mode: int, *rest: Any, **kw: Any
) -> Any:
    """Answer the A5 op."""
    given = {"num_heads_q": num_heads_q, "num_heads_kv": num_heads_kv, "head_dim": head_dim}
    return _sas("a5", NAMES[1], {**given, "kv_quant_mode": kv_quant_mode}, rest, kw)


def _sas(family: Any, name: str, first: dict[str, Any], rest: Any, given: Any) -> Tensor:
    arguments = {**first, **_named(name, len(first), rest, given)}
    record(name, arguments)
    assert arguments["num_heads_kv"] == 1
    assert (arguments["layout_q"], arguments["layout_kv"]) == ("TND", "PA_ND")
    assert (arguments["ori_mask_mode"], arguments["cmp_mask_mode"]) == (4, 3)
    assert not _present(arguments["seqused_q"])
    starts, lengths = arguments["cu_seqlens_q"], arguments["seqused_kv"]
    _check_pair(starts, lengths, 1)
    ratio = arguments["cmp_ratio"] if arguments["has_cmp_kv"] else 1
    assert arguments["cmp_topk"] in (0, 512, 1024)
    spec = SasSpec(
        num_heads=arguments["num_heads_q"],
        device_family=family,
        num_cores=CORES,
        window_left=arguments["ori_win_left"],
        window_right=arguments["ori_win_right"],
        cmp_ratio=ratio,
        cmp_topk=arguments["cmp_topk"] if ratio > 1 else 0,
    )
    return _with_garbage(plan_sas(spec, starts, lengths), spec.record_size)


def answer_qli(
    num_heads_q: int,
    num_heads_k: int,
    head_dim: int,
    query_quant_mode: int,
    key_quant_mode: int,
    *rest: Any,
    **kw: Any,
) -> Any:
    """Answer the indexer's op."""
    arguments = {
        "num_heads_q": num_heads_q,
        "num_heads_k": num_heads_k,
        "head_dim": head_dim,
        "query_quant_mode": query_quant_mode,
        "key_quant_mode": key_quant_mode,
        **_named(NAMES[2], 5, rest, kw),
    }
    record(NAMES[2], arguments)
    assert (num_heads_k, head_dim) == (1, 128)
    assert arguments["sparse_mode"] in (0, 3)
    ends, lengths = arguments["actual_seq_lengths_query"], arguments["actual_seq_lengths_key"]
    _check_pair(ends, lengths, 0)
    starts = torch.cat([torch.zeros(1, dtype=torch.int32), ends])
    spec = QliSpec(num_heads=num_heads_q, num_cores=CORES, cmp_ratio=arguments["cmp_ratio"])
    return _with_garbage(plan_qli(spec, starts, lengths), spec.record_size)


def answer_compressor(
    rope_cos: Tensor,
    rope_sin: Tensor,
    cu_seqlens: Tensor,
    start_pos: Tensor,
    kv_block_table: Tensor,
    kv_block_size: int,
    slot_mapping_format: int,
    compress_ratio: int,
    num_compressed_tokens: int,
    num_reqs_actual: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Answer the compressor's op, which attention launches inside the model's forward."""
    given = {**locals()}
    record(NAMES[3], given)
    count = num_reqs_actual
    assert 0 < count < cu_seqlens.numel()
    assert slot_mapping_format in (1, 2)
    rows = compressor_rows(
        cu_seqlens[: count + 1].contiguous(),
        start_pos[:count].contiguous(),
        kv_block_table,
        rope_cos,
        rope_sin,
        ratio=compress_ratio,
        block_size=kv_block_size,
        num_rows=num_compressed_tokens,
        slot_format="flat" if slot_mapping_format == 1 else "block_offset",
    )
    shape = (num_compressed_tokens, 1, 1, rope_cos.shape[1])
    return rows.cos.view(shape), rows.sin.view(shape), rows.slot_mapping


def _named(name: str, taken: int, rest: Any, given: Any) -> dict[str, Any]:
    schema = getattr(torch.ops._C_ascend, name).default._schema
    later = schema.arguments[taken:]
    values = {argument.name: argument.default_value for argument in later}
    values.update(zip(values, rest, strict=False))
    return {**values, **given}


def _present(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.numel() > 0


def _check_pair(starts: Tensor, lengths: Tensor, extra: int) -> None:
    assert starts.dtype is torch.int32
    assert lengths.dtype is torch.int32
    # the real op does not check this and would read past a shorter tensor
    assert starts.numel() == lengths.numel() + extra, (starts.shape, lengths.shape)


def _with_garbage(words: Tensor, record: int) -> Tensor:
    """Return a new tensor in which words that the op leaves alone are garbage."""
    answer = words.clone()
    records = answer[: CORES * record].view(CORES, record)
    idle = records[:, 0] == 0
    fields = records[:, 1:8]
    fields[idle] = GARBAGE
    answer[896:] = GARBAGE
    return answer
