"""What the methods of an installed vllm-ascend read and set, told from their code objects.

Plan methods run with a stand-in as ``self`` and with lengths whose maximum is a bound, so a body
that reads something else is another method, whatever its signature says. Of the methods that ours
replaces every name counts, keywords among them: a field that upstream comes to set would be
missing. Numbers are not compared.
"""

import inspect
from collections.abc import Container, Iterator, Set
from typing import Any

from dsacp.vllm.ascend.known_bodies import NAMED, OPTIONAL
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


def changed_bodies(builder: Any, remedy: str, except_for: Container[str] = ()) -> Iterator[Blocker]:
    """Yield every method that reads or sets other names than the supported versions' does.

    Args:
        builder: ``AscendDSACPMetadataBuilder``.
        remedy: what the user can do.
        except_for: methods whose signature is refused already.
    """
    for name, wanted in READ.items():
        if name in except_for:
            continue
        read = set(getattr(_code(builder, name), "co_names", ()))
        unlike = {found for found in read ^ wanted if PASSED_THROUGH not in found}
        yield from _changed(f"{builder.__name__}.{name}", read, unlike, remedy)
    for name, text in NAMED.items():
        if name in except_for:
            continue
        used = names_of(_code(builder, name))
        unlike = (used ^ set(text.split())) - OPTIONAL
        yield from _changed(f"{builder.__name__}.{name}", used, unlike, remedy)


def names_of(code: Any) -> set[str]:
    """Return the names in a code object and those inside it, keywords of calls among them."""
    names = set(getattr(code, "co_names", ()))
    for constant in getattr(code, "co_consts", ()):
        if isinstance(constant, tuple) and all(isinstance(item, str) for item in constant):
            names.update(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            names.add(constant)  # a call of many keywords holds them one by one
        elif hasattr(constant, "co_names"):
            names |= names_of(constant)
    return names


def _code(builder: Any, name: str) -> Any:
    return getattr(inspect.unwrap(getattr(builder, name, None) or object), "__code__", None)


def _changed(where: str, have: Set[str], unlike: Set[str], remedy: str) -> Iterator[Blocker]:
    new, lost = sorted(unlike & have), sorted(unlike - have)
    change = [f"reads {', '.join(new)}"] if new else []
    change += [f"no longer reads {', '.join(lost)}"] if lost else []
    if change:
        yield Blocker(f"{where} that {' and '.join(change)}", remedy)
