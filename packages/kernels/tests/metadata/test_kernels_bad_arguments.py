"""Every kernel face checks all its tensors before the first write.

One tensor of a good call is replaced by one that the kernel cannot use: the call either works, or
raises an error of ours and leaves every buffer as it was.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from dsacp.core import DsacpError, LayoutError, TokenShard
from dsacp.kernels import (
    CompressorRows,
    LocalMetadata,
    clear_tails,
    compressor_rows,
    covered_rows,
    draft_steps,
    dspark_indices,
    local_metadata,
    plan_table,
    rope_gather,
    sas_plan,
    slot_mapping,
    sparse_attention,
    stage_inputs,
)

WORD = {"dtype": torch.int32}
Call = dict[str, Any]


def words(*values: int) -> Tensor:
    return torch.tensor(values, **WORD)


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, **WORD)


STARTS, LENS = words(0, 4, 8), words(9, 12)
BANKS: Call = {
    "arena": zeros(128),
    "layout": torch.arange(14, **WORD).view(1, 2, 7) * 8,
    "rope_bank": torch.zeros(256),
    "rope_layout": words(0, 32, 64, 96).view(1, 2, 2),
}
PLAN_ROW = (0, 0, 0, 2, 0, 64, 0, 4, 127, 0, 1, 0, 0, -1, 0, 0)
CALLS: dict[str, tuple[Callable[..., Any], Callable[[], Call]]] = {
    "local_metadata": (
        local_metadata,
        lambda: {
            "query_start_loc": STARTS,
            "seq_lens": LENS,
            "shard": TokenShard(8, 2, 0),
            "out": LocalMetadata(zeros(3), zeros(2), zeros(2)),
        },
    ),
    "slot_mapping": (
        slot_mapping,
        lambda: {
            "positions": words(0, 1, 2),
            "token_to_req": words(0, 0, 1),
            "block_table": zeros(4, 8) + 1,
            "block_size": 16,
            "out": zeros(3),
        },
    ),
    "rope_gather": (
        rope_gather,
        lambda: {
            "positions": words(0, 1, 2),
            "cos_table": torch.rand(16, 4),
            "sin_table": torch.rand(16, 4),
            "out_cos": torch.zeros(3, 4),
            "out_sin": torch.zeros(3, 4),
        },
    ),
    "stage_inputs": (
        stage_inputs,
        lambda: {
            "query_start_loc": STARTS,
            "seq_lens": LENS,
            "num_rejected": words(0, 1),
            "num_reqs": 2,
            "out": zeros(18),
            "rows": 4,
            "drafts": words(1, 0),
        },
    ),
    "clear_tails": (
        clear_tails,
        lambda: {
            **BANKS,
            "rope_widths": [4],
            "first_step": 0,
            "rows_from": [1],
            "rows_to": [4],
            "tokens_from": [2],
            "tokens_to": [6],
            "last_starts": [4],
            "last_local_starts": [4],
        },
    ),
    "draft_steps": (
        draft_steps,
        lambda: {
            "query_start_loc": STARTS,
            "seq_lens": LENS,
            "num_rejected": words(0, 1),
            "num_reqs": words(2),
            "block_tables": [zeros(4, 8) + 1],
            "cos_tables": [torch.rand(16, 4)],
            "sin_tables": [torch.rand(16, 4)],
            "pointers": torch.zeros(5, dtype=torch.int64),
            **BANKS,
            "block_sizes": [16],
            "row_counts": [2, 2],
            "token_counts": [8, 2],
            "first_step": 0,
            "tp_size": 2,
            "tp_rank": 0,
            "pad_query_len": 4,
            "max_model_len": 16,
            "saturate": False,
            "repeat_padding": False,
            "causal": True,
            "drafts": words(1, 0),
        },
    ),
    "sas_plan": (
        sas_plan,
        lambda: {
            "query_start_loc": STARTS,
            "seq_lens": LENS,
            "out": zeros(1024),
            "plans": plan_table([PLAN_ROW]),
        },
    ),
    "compressor_rows": (
        compressor_rows,
        lambda: {
            "query_start_loc": STARTS,
            "start_pos": words(0, 4),
            "block_table": zeros(4, 8) + 1,
            "cos_table": torch.rand(16, 4),
            "sin_table": torch.rand(16, 4),
            "ratio": 4,
            "block_size": 16,
            "seq_lens": words(4, 8),
            "out": CompressorRows(
                zeros(4), zeros(4), zeros(4), torch.zeros(4, 4), torch.zeros(4, 4)
            ),
        },
    ),
    "covered_rows": (
        covered_rows,
        lambda: {
            "words": zeros(1024),
            "query_start_loc": STARTS,
            "family": "a2",
            "num_heads": 64,
            "num_cores": 4,
            "out": torch.zeros(8, dtype=torch.bool),
        },
    ),
    "dspark_indices": (
        dspark_indices,
        lambda: {
            "query_start_loc": STARTS,
            "seq_lens": LENS,
            "block_table": zeros(4, 8) + 1,
            "window": 8,
            "num_draft_tokens": 3,
            "block_size": 16,
            "index_width": 128,
            "out": zeros(8, 1, 128),
        },
    ),
    "sparse_attention": (
        sparse_attention,
        lambda: {
            "q": torch.rand(8, 2, 8),
            "kv": torch.rand(4, 16, 1, 8),
            "block_table": zeros(2, 8) + 1,
            "query_start_loc": STARTS,
            "seq_lens": LENS,
            "sinks": torch.zeros(2),
            "scale": 0.3,
            "window_left": 7,
            "cmp_ratio": 4,
            "cmp_kv": torch.rand(4, 16, 1, 8),
            "cmp_block_table": zeros(2, 8) + 1,
            "cmp_indices": zeros(8, 1, 4),
            "sas_metadata": zeros(1024),
            "num_cores": 4,
            "out": torch.zeros(8, 2, 8),
        },
    ),
}


def tensors(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    """Yield every tensor of a call with where it lies: dictionaries, lists, dataclasses."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from tensors(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from tensors(item, (*path, index))
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors(getattr(value, field.name), (*path, field.name))


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Return a copy of a call with one tensor replaced."""
    if not path:
        return new
    key, *rest = path
    if isinstance(value, dict):
        return {**value, key: put(value[key], tuple(rest), new)}
    if isinstance(value, list):
        return [put(item, tuple(rest), new) if index == key else item
                for index, item in enumerate(value)]  # fmt: skip
    return replace(value, **{key: put(getattr(value, key), tuple(rest), new)})


def with_gradient(tensor: Tensor) -> Tensor | None:
    return tensor.clone().requires_grad_() if tensor.is_floating_point() else None


def made_in_inference(tensor: Tensor) -> Tensor:
    with torch.inference_mode():
        return tensor.clone()


def overlapping(tensor: Tensor) -> Tensor | None:
    """All entries are one word, which a kernel would write many times."""
    return tensor.flatten()[:1].expand(tensor.numel()).view(tensor.shape) if tensor.dim() else None


VARIANTS: dict[str, Callable[[Tensor], Any]] = {
    "elsewhere": lambda tensor: tensor.to("meta"),
    "gradient": with_gradient,
    "inference": made_in_inference,
    "shorter": lambda tensor: tensor[:-1].clone(),
    "longer": lambda tensor: torch.cat([tensor, tensor]),
    "empty": lambda tensor: tensor[:0],
    "overlapping": overlapping,
    "strided": lambda tensor: torch.stack([tensor, tensor], -1)[..., 0],
    "int64": lambda tensor: tensor.to(torch.int64),
    "float64": lambda tensor: tensor.to(torch.float64),
    "bool": lambda tensor: tensor.to(torch.bool),
    "0-d": lambda tensor: tensor.flatten()[0].clone(),
    "sparse": lambda tensor: tensor.to_sparse(),
    "list": lambda tensor: tensor.tolist(),
}
REFUSED = {"elsewhere", "0-d", "sparse", "list"}
"""Variants that no kernel can take, for any of its tensors."""


def places(name: str) -> list[tuple[Any, ...]]:
    return [path for path, _ in tensors(CALLS[name][1]())]


CASES = [(name, path) for name in CALLS for path in places(name)]


@pytest.mark.parametrize(
    ("name", "path"), CASES, ids=[f"{name}-{'.'.join(map(str, path))}" for name, path in CASES]
)
def test_one_bad_tensor_touches_no_buffer(name: str, path: tuple[Any, ...]) -> None:
    """A sin table with a gradient, or one tensor elsewhere, was noticed after cos was written."""
    face, make = CALLS[name]
    for variant, change in VARIANTS.items():
        call = _owned(make())
        good = dict(tensors(call))[path]
        bad = change(good)
        if bad is None:
            continue
        call = put(call, path, bad)
        kept = [(item, item.detach().clone()) for _, item in tensors(call)]
        try:
            face(**call)
        except DsacpError:
            assert all(_same(item, copy) for item, copy in kept), variant
        else:
            assert variant not in REFUSED, variant


def _owned(call: Call) -> Call:
    """Give a call tensors of its own."""
    for path, tensor in list(tensors(call)):
        call = put(call, path, tensor.clone())
    return call


def _same(left: Tensor, right: Tensor) -> bool:
    if left.device.type == "meta" or left.is_sparse:
        return True
    return left.shape == right.shape and torch.equal(left.detach(), right)


def numbers(name: str) -> list[tuple[Any, ...]]:
    """Where a call has integers: arguments of their own, or items of lists."""
    call = CALLS[name][1]()
    single = [(key,) for key, value in call.items() if type(value) is int]
    return single + [
        (key, index)
        for key, value in call.items()
        if isinstance(value, list)
        for index, item in enumerate(value)
        if type(item) is int
    ]


@pytest.mark.parametrize("name", CALLS)
def test_a_fraction_for_a_count_touches_no_buffer(name: str) -> None:
    """1.5 requests stopped stage_inputs at a slice, after the count and the starts were written."""
    face, make = CALLS[name]
    for path in numbers(name):
        call = put(_owned(make()), path, 1.5)
        kept = [(item, item.clone()) for _, item in tensors(call)]
        with contextlib.suppress(DsacpError, TypeError, RuntimeError):
            face(**call)
            continue
        assert all(_same(item, copy) for item, copy in kept), path


@pytest.mark.parametrize("name", ["num_reqs", "num_tokens", "rows"])
@pytest.mark.parametrize("count", [1.5, True, -1])
def test_staging_takes_whole_counts(name: str, count: object) -> None:
    call = {**CALLS["stage_inputs"][1](), "num_tokens": 8, name: count}
    with pytest.raises(LayoutError, match=f"{name} >= 0 as a whole number, found {count}"):
        stage_inputs(**call)


@pytest.mark.parametrize("name", CALLS)
def test_the_good_calls_work(name: str) -> None:
    face, make = CALLS[name]
    face(**_owned(make()))
