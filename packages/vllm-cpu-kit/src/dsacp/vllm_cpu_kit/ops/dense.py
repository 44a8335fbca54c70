"""Packed batched matmul, the hyper-connection mixers and expert routing."""

import torch
from torch import Tensor
from torch.nn.functional import softplus


def convert_weight_packed(weight: Tensor) -> Tensor:
    """Return a copy: our ``bmm_cpu`` reads plain row-major weights."""
    return weight.clone()


def bmm_cpu(out: Tensor, a: Tensor, b: Tensor, _packed: bool, scale: Tensor | None) -> None:
    """out[g] = a[g] @ b[g]^T, summed in float32; refuses scaled weights."""
    if scale is not None:
        raise NotImplementedError(
            "expected no weight scale, found one: the CPU kit has bfloat16 only"
        )
    out.copy_(torch.bmm(a.float(), b.float().transpose(1, 2)).to(out.dtype))


def hc_pre_fused_cpu(
    x: Tensor,
    fn: Tensor,
    scale: Tensor,
    base: Tensor,
    mult: int,
    iters: int,
    rms_eps: float,
    hc_eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Mix ``mult`` residual streams into one layer input; returns input, post and comb weights."""
    from vllm.model_executor.kernels.mhc.torch import mhc_pre_torch

    post, comb, y = mhc_pre_torch(x, fn, scale, base, rms_eps, hc_eps, hc_eps, 2.0, iters)
    count = x.shape[0]
    return (
        y.contiguous(),
        post.reshape(count, mult).contiguous(),
        comb.reshape(count, mult, mult).contiguous(),
    )


def hc_post_fused_cpu(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """Spread a layer's output back over the residual streams."""
    from vllm.model_executor.kernels.mhc.torch import mhc_post_torch

    mixed: Tensor = mhc_post_torch(x, residual, post.unsqueeze(-1), comb)
    return mixed.contiguous()


def hc_head_fused_cpu(
    x: Tensor, fn: Tensor, scale: Tensor, base: Tensor, hc_eps: float, norm_eps: float
) -> Tensor:
    """Collapse the residual streams [T, mult, D] into [T, D] before the vocabulary head."""
    flat = x.flatten(1).float()
    mix = (flat * torch.rsqrt(flat.square().mean(-1, keepdim=True) + norm_eps)) @ fn.t()
    gate = torch.sigmoid(mix * scale + base) + hc_eps
    return (gate.unsqueeze(-1) * x.float()).sum(1).to(x.dtype)


def _check_routing(scoring: str, shared: int, renormalize: bool) -> None:
    if (scoring, shared, renormalize) != ("sqrtsoftplus", 0, True):
        raise NotImplementedError(
            "expected routing by sqrtsoftplus, no fused shared experts and renormalize=True, found "
            f"{scoring!r}, {shared} shared experts and {renormalize}: the CPU kit has no other"
        )


def _routing(scores: Tensor, ids: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    picked = scores.gather(1, ids)
    weights = picked / picked.sum(-1, keepdim=True) * factor
    return weights.float().contiguous(), ids.to(torch.int32).contiguous()


def biased_topk_cpu(
    _hidden: Tensor,
    gate: Tensor,
    bias: Tensor,
    topk: int,
    renormalize: bool,
    scoring: str,
    shared: int,
    factor: float | None,
    apply_factor: bool,
) -> tuple[Tensor, Tensor]:
    """Pick experts by biased score, weigh them by the unbiased one (sqrt of softplus).

    Raises:
        NotImplementedError: another scoring, fused shared experts, or weights as they are.
    """
    _check_routing(scoring, shared, renormalize)
    factor = factor if apply_factor else None
    scores = softplus(gate.float()).sqrt()
    return _routing(scores, torch.topk(scores + bias, topk, dim=-1).indices, factor or 1.0)


def hash_topk_cpu(
    gate: Tensor,
    table: Tensor,
    _topk: int,
    scoring: str,
    shared: int,
    _experts: int,
    factor: float,
) -> tuple[Tensor, Tensor]:
    """Experts of a hash-routed layer come from the token table; only their weights are scored.

    Raises:
        NotImplementedError: another scoring, or fused shared experts.
    """
    _check_routing(scoring, shared, renormalize=True)
    return _routing(softplus(gate.float()).sqrt(), table.long(), factor or 1.0)
