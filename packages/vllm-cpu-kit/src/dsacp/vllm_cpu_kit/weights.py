"""Weights drawn from each parameter's name, whole first and cut into shards afterwards.

So every tensor-parallel size holds the same model, and no rank repeats another one's heads.
"""

import math
import os
import zlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

LOAD_FORMAT = "dsacp_seeded"
NOISE_VARIABLE = "DSACP_KIT_NOISE"
DEFAULT_NOISE = 0.02
"""Scale of everything that blurs the drafter's view of the target (60 to 75 % of first drafts
are accepted, by prompt)."""

_HEAD = "lm_head.weight"


def _generator(name: str) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(name.encode()))


def _scale(name: str, fan_in: int) -> float:
    noise = float(os.environ.get(NOISE_VARIABLE, DEFAULT_NOISE))
    if name.endswith(("wo_b.weight", "down_proj.weight", "w2_weight")):
        return 4 * noise / math.sqrt(fan_in)
    if "hc_" in name and name.endswith("_fn"):
        return noise / math.sqrt(fan_in)
    if name.endswith("h_proj.weight"):
        return noise / math.sqrt(fan_in)
    if name.endswith("embed_tokens.weight"):
        return 1.0
    return 1.0 / math.sqrt(fan_in)


def full_tensor(name: str, shape: tuple[int, ...]) -> Tensor:
    """Draw the unsharded float32 parameter ``name``."""
    if name.endswith("e_proj.weight"):
        return torch.eye(shape[0])
    if name.endswith("_scale"):
        return torch.ones(shape)
    if name.endswith(("_base", "correction_bias")):
        return torch.zeros(shape)
    if name.endswith("attn_sink"):
        return torch.randn(shape, generator=_generator(name))
    if len(shape) == 1:
        return torch.ones(shape)
    return torch.randn(shape, generator=_generator(name)) * _scale(name, shape[-1])


def _shard(name: str, local: Tensor, dim: int, parts: list[int], rank: int, size: int) -> Tensor:
    """Cut ``rank``'s piece out of each of the ``parts`` (local lengths) that ``dim`` packs."""
    pieces = []
    for index, length in enumerate(parts):
        shape = list(local.shape)
        shape[dim] = length * size
        whole = full_tensor(f"{name}/{index}" if index else name, tuple(shape))
        pieces.append(whole.narrow(dim, rank * length, length))
    return torch.cat(pieces, dim)


def _layout(module: nn.Module, name: str, local: Tensor) -> tuple[int, list[int], int]:
    """Return (sharded dimension, local lengths of its packed parts, shard count)."""
    layer: Any = module
    size = int(getattr(layer, "tp_size", 1) or 1)
    dim, parts = 0, None
    kind = {base.__name__ for base in type(layer).__mro__}
    if name == "attn_sink":
        size = layer.n_heads // layer.n_local_heads
    elif name in ("w13_weight", "w2_weight"):
        size = layer.moe_config.moe_parallel_config.tp_size
        dim = 1 if name == "w13_weight" else 2
        parts = [local.shape[1] // 2] * 2 if name == "w13_weight" else None
    elif "RowParallelLinear" in kind:
        dim = 1
    elif "ColumnParallelLinear" in kind:
        parts = list(layer.output_partition_sizes)
    elif "VocabParallelEmbedding" not in kind:
        size = 1
    return dim, parts or [local.shape[dim]], size


def canonical_name(name: str) -> str:
    """Name under which a parameter is drawn: the drafter shares the target's vocabulary head."""
    return _HEAD if name.endswith("shared_head.head.weight") else name


def _parameters(model: nn.Module) -> Iterator[tuple[str, str, nn.Module, Tensor]]:
    for prefix, module in model.named_modules():
        for name, tensor in module.named_parameters(recurse=False):
            yield f"{prefix}.{name}", name, module, tensor


@torch.no_grad()
def fill(model: nn.Module, rank: int) -> None:
    """Overwrite every parameter of ``model`` with this rank's shard of the seeded model."""
    for full_name, name, module, tensor in _parameters(model):
        if not tensor.is_floating_point():
            whole = torch.randint(0, 1 << 30, tensor.shape, generator=_generator(full_name))
            tensor.copy_(_expert_table(module, name, whole))
            continue
        dim, parts, size = _layout(module, name, tensor)
        value = _shard(canonical_name(full_name), tensor, dim, parts, rank % size, size)
        tensor.copy_(value.to(tensor.dtype))


def _expert_table(module: nn.Module, name: str, draws: Tensor) -> Tensor:
    if name != "tid2eid":
        raise NotImplementedError(f"no seeded rule for the integer parameter {name!r}")
    # two different experts a token, as a hash-routed layer wants
    experts = int(module.output_size)  # type: ignore[arg-type]
    first = draws[:, :1] % experts
    step = 1 + draws[:, 1:] % (experts - 1)
    return torch.cat((first, (first + step.cumsum(1)) % experts), dim=1)


def register_loader() -> None:
    """Register ``load_format="dsacp_seeded"`` with vLLM."""
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

    from dsacp.vllm_cpu_kit.ops import override_ops

    @register_model_loader(LOAD_FORMAT)
    class SeededModelLoader(DummyModelLoader):  # type: ignore[misc]
        """Fills parameters by name instead of near-zero noise."""

        def __init__(self, load_config: Any) -> None:
            super().__init__(load_config)
            override_ops()

        def load_weights(self, model: nn.Module, model_config: Any) -> None:  # noqa: ARG002
            from vllm.distributed import get_tensor_model_parallel_rank

            fill(model, get_tensor_model_parallel_rank())
