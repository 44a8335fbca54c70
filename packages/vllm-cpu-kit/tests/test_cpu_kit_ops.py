"""The torch operators against plain loops. Needs no vLLM."""

import pytest
import torch

from dsacp.vllm_cpu_kit.ops.attention import (
    flash_mla_with_kvcache_cpu,
    fused_qnorm_rope_kv_insert_cpu,
    inverse_gptj_rope_o_proj_cpu,
)
from dsacp.vllm_cpu_kit.ops.compressor import compress_norm_rope_store_cpu, save_partial_states_cpu
from dsacp.vllm_cpu_kit.ops.dense import biased_topk_cpu, bmm_cpu, hash_topk_cpu
from dsacp.vllm_cpu_kit.ops.packed_cache import DATA_BYTES, SCALE_BYTES, load_rows, store_rows
from dsacp.vllm_cpu_kit.ops.rope import rotate_tail

BLOCK = 8


def table(rows: int = 64) -> torch.Tensor:
    angle = torch.arange(rows)[:, None] * 0.07 * torch.arange(1, 33)
    return torch.cat((angle.cos(), angle.sin()), dim=1)


def empty_cache(blocks: int) -> torch.Tensor:
    return torch.full((blocks, BLOCK * (DATA_BYTES + SCALE_BYTES)), 0x7F, dtype=torch.uint8)


def test_rotation_is_undone_and_leaves_the_head_alone() -> None:
    x = torch.randn(5, 3, 512)
    positions = torch.tensor([0, 7, 63, 1, 2])
    turned = rotate_tail(x, positions, table())
    assert torch.equal(turned[..., :448], x[..., :448])
    assert torch.equal(turned[0], x[0])
    back = inverse_gptj_rope_o_proj_cpu(turned, positions, table(), 64)
    torch.testing.assert_close(back, x, rtol=0, atol=1e-5)


def test_a_row_survives_the_cache_within_fp8_precision() -> None:
    cache, rows = empty_cache(3), torch.randn(4, 512) * torch.tensor([1e-3, 1, 30, 400.0])[:, None]
    slots = torch.tensor([2, 17, -1, 9])
    before = cache.clone()
    store_rows(cache, slots, BLOCK, rows)
    back = load_rows(cache, slots.clamp(min=0), BLOCK)
    for index in (0, 1, 3):
        tiles, got = rows[index, :448].view(7, 64), back[index, :448].view(7, 64)
        assert bool(((tiles - got).abs() <= tiles.abs().amax(1, keepdim=True) / 14).all())
        torch.testing.assert_close(back[index, 448:], rows[index, 448:], rtol=8e-3, atol=0)
    untouched = torch.ones(3, BLOCK, dtype=torch.bool)
    untouched.view(-1)[slots[slots >= 0]] = False
    data = slice(0, BLOCK * DATA_BYTES)
    same = (cache[:, data] == before[:, data]).view(3, BLOCK, DATA_BYTES).all(-1)
    assert bool(same[untouched].all())


def test_attention_over_two_caches_equals_a_softmax_with_a_sink() -> None:
    near, far = empty_cache(2), empty_cache(2)
    store_rows(near, torch.arange(16), BLOCK, torch.randn(16, 512))
    store_rows(far, torch.arange(16), BLOCK, torch.randn(16, 512))
    q, sink = torch.randn(40, 3, 512), torch.randn(3)
    near_slots = torch.full((40, 6), -1)
    far_slots = torch.full((40, 4), -1)
    for token in range(39):
        count = token % 5
        near_slots[token, :count] = torch.randperm(16)[:count]
        far_slots[token, : token % 3] = torch.randperm(16)[: token % 3]
    out = torch.full((40, 3, 512), float("nan"))
    flash_mla_with_kvcache_cpu(
        out, q, near, near_slots, BLOCK, far, far_slots, BLOCK, sink, 512**-0.5
    )
    for token in range(40):
        keys = torch.cat(
            [
                load_rows(cache, slots[token][slots[token] >= 0], BLOCK)
                for cache, slots in ((near, near_slots), (far, far_slots))
            ]
        ).double()
        logits = torch.cat((q[token].double() @ keys.T * 512**-0.5, sink.double()[:, None]), 1)
        expected = torch.softmax(logits, 1)[:, :-1] @ keys
        torch.testing.assert_close(out[token].double(), expected, rtol=1e-5, atol=1e-5)
    assert not bool(out[0].any())


def test_a_rows_attention_does_not_depend_on_batch_or_heads() -> None:
    """Sharding over tokens changes both; equal tokens need equal bits."""
    cache = empty_cache(4)
    store_rows(cache, torch.arange(32), BLOCK, torch.randn(32, 512))
    q, sink = torch.randn(9, 4, 512).to(torch.bfloat16), torch.randn(4)
    slots = torch.stack([torch.randperm(32)[:20] for _ in range(9)])
    whole, part = torch.empty_like(q), torch.empty_like(q[3:5, :2])
    none = slots[:, :0]
    flash_mla_with_kvcache_cpu(whole, q, cache, slots, BLOCK, cache, none, 1, sink, 0.04)
    flash_mla_with_kvcache_cpu(
        part, q[3:5, :2], cache, slots[3:5], BLOCK, cache, none[3:5], 1, sink[:2], 0.04
    )
    assert torch.equal(part, whole[3:5, :2])


def test_queries_are_normalised_padded_and_keys_without_a_slot_dropped() -> None:
    cache = empty_cache(2)
    q, kv = torch.randn(3, 2, 512), torch.randn(3, 512)
    slots = torch.tensor([4, -1, 11])
    out = fused_qnorm_rope_kv_insert_cpu(
        q, kv, torch.tensor([0, 1, 2]), cache, slots, table(), 4, 1e-6, BLOCK
    )
    assert out.shape == (3, 4, 512)
    assert not bool(out[:, 2:].any())
    torch.testing.assert_close(out[:, :2].square().mean(-1), torch.ones(3, 2), rtol=1e-4, atol=0)
    stored = load_rows(cache, torch.tensor([4, 11]), BLOCK)
    expected = rotate_tail(kv[[0, 2]], torch.tensor([0, 2]), table())
    assert bool((stored - expected).abs().max() < expected.abs().max() / 14)


def test_compression_pools_a_closed_group_once() -> None:
    ratio, width = 4, 512
    state = torch.zeros(3, BLOCK, 2 * width)
    kv, score = torch.randn(6, width), torch.randn(6, width)
    ape, positions = torch.randn(ratio, width), torch.arange(6)
    slots = torch.tensor([0, 1, 2, 3, 4, -1])
    save_partial_states_cpu(kv, score, ape, positions, state, slots)
    assert not bool(state[0, 5:].any())
    cache = empty_cache(1)
    gather = torch.full((6, ratio), -1)
    gather[3] = torch.arange(4)
    closing = torch.tensor([-1, -1, -1, 2, -1, -1])
    compress_norm_rope_store_cpu(
        state, gather, positions, closing, torch.ones(width), 1e-6, table(), cache, BLOCK, ratio
    )
    weights = torch.softmax(score[:4] + ape, 0)
    pooled = (weights * kv[:4]).sum(0)
    expected = pooled / (pooled.square().mean() + 1e-6).sqrt()
    got = load_rows(cache, torch.tensor([2]), BLOCK)[0]
    assert bool((got - expected).abs().max() < expected.abs().max() / 14)


def test_routing_weighs_by_unbiased_scores() -> None:
    gate = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    bias = torch.tensor([9.0, 0, 0, 0])
    weights, ids = biased_topk_cpu(gate, gate, bias, 2, True, "sqrtsoftplus", 0, 1.5, True)
    assert sorted(ids[0].tolist()) == [0, 3]
    score = torch.nn.functional.softplus(gate[0]).sqrt()
    expected = score[ids[0].long()] / score[[0, 3]].sum() * 1.5
    torch.testing.assert_close(weights[0], expected)
    _, ids = hash_topk_cpu(gate, torch.tensor([[2, 1]]), 2, "sqrtsoftplus", 0, 4, 1.0)
    assert ids.tolist() == [[2, 1]]


def test_batched_matmul_transposes_the_weight() -> None:
    a, b = torch.randn(2, 3, 5), torch.randn(2, 4, 5)
    out = torch.empty(2, 3, 4)
    bmm_cpu(out, a, b, True, None)
    torch.testing.assert_close(out, torch.einsum("gmk,gnk->gmn", a, b))


@pytest.mark.parametrize(
    ("scoring", "shared", "renormalize"),
    [("softmax", 0, True), ("sqrtsoftplus", 1, True), ("sqrtsoftplus", 0, False)],
)
def test_other_routing_is_refused_under_the_engines_own_names(scoring, shared, renormalize) -> None:
    gate = torch.zeros(1, 4)
    with pytest.raises(NotImplementedError, match=f"found '{scoring}', {shared} shared"):
        biased_topk_cpu(gate, gate, gate[0], 2, renormalize, scoring, shared, 1.5, True)
    if renormalize:
        with pytest.raises(NotImplementedError, match=f"found '{scoring}', {shared} shared"):
            hash_topk_cpu(gate, torch.tensor([[2, 1]]), 2, scoring, shared, 4, 1.0)


def test_a_weight_scale_is_refused() -> None:
    a, b, out = torch.ones(2, 3, 5), torch.ones(2, 4, 5), torch.full((2, 3, 4), 7.0)
    with pytest.raises(NotImplementedError, match="no weight scale"):
        bmm_cpu(out, a, b, True, torch.ones(1))
    assert bool((out == 7).all())
