"""What the plan methods of an installed vllm-ascend read, told from their code objects.

They run with a stand-in as ``self`` and with lengths whose maximum is a bound, so a body that reads
something else is another method, whatever its signature says.
"""

import inspect
from collections.abc import Iterator
from typing import Any

from dsacp.vllm.settings import Blocker

_CORE = frozenset({"common_ratio_to_sas_metadata", "compressor_ratio", "model_config", "hf_config"})
_CACHE = frozenset({"get", "device", "seqused_q", "str"})
READ = {
    "_build_sas_metadata": _CORE | _CACHE | {
        "DeviceOperator", "_zero_i32", "cu_seqlens_cmp_kv", "cu_seqlens_ori_kv", "dict",
        "get_dsa_decode_cu_seqlens_cmp_kv", "get_dsa_decode_cu_seqlens_ori_kv",
        "get_dsa_sparse_attn_metadata_kwargs", "get_dsa_sparse_attn_metadata_op", "get_head_size",
        "req_sas_metadata", "setdefault", "sliding_window",
    },
    "_build_qli_metadata": _CORE | _CACHE | {
        "_C_ascend", "clone", "index_head_dim", "index_n_heads", "index_topk", "int", "item",
        "max", "npu_vllm_quant_lightning_indexer_metadata", "ops", "req_qli_metadata", "torch",
    },
    "_get_cmp_seqlens_for_metadata": frozenset({
        "DeviceOperator", "compressor_ratio", "cu_seqlens_cmp_kv",
        "get_dsa_decode_cu_seqlens_cmp_kv",
    }),
    "_num_compressor_metadata_rows": frozenset({
        "compressor_ratio", "min", "num_actual_tokens", "num_reqs",
    }),
}  # fmt: skip
"""Names that each method reads, globals among them."""

PASSED_THROUGH = "quant"
"""Names with this in them may come and go: the indexer's quant modes are the host's own."""


def changed_bodies(builder: Any, remedy: str) -> Iterator[Blocker]:
    """Yield every plan method that reads other names than the supported versions' do.

    Args:
        builder: ``AscendDSACPMetadataBuilder``; its signatures have been checked.
        remedy: what the user can do.
    """
    for name, wanted in READ.items():
        code = getattr(inspect.unwrap(getattr(builder, name)), "__code__", None)
        read = set(getattr(code, "co_names", ()))
        new = sorted(found for found in read - wanted if PASSED_THROUGH not in found)
        lost = sorted(found for found in wanted - read if PASSED_THROUGH not in found)
        if new or lost:
            change = [f"reads {', '.join(new)}"] if new else []
            change += [f"no longer reads {', '.join(lost)}"] if lost else []
            yield Blocker(f"{builder.__name__}.{name} that {' and '.join(change)}", remedy)
