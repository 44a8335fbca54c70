"""Token-sharded attention on vLLM's own groups, two processes over gloo. Needs vLLM on a CPU."""

import importlib.util
import multiprocessing
import os
import traceback
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

if importlib.util.find_spec("vllm") is None:
    pytest.skip("needs vLLM: nox -s vllm", allow_module_level=True)

from dsacp.core import TokenShard
from dsacp.vllm.attention import SINKS, gather_sinks, install_sharded_attention, sharded_attention
from dsacp.vllm_cpu_kit import register as register_kit
from dsacp.vllm_cpu_kit.ops import override_ops
from dsacp.vllm_cpu_kit.ops.attention import flash_mla_with_kvcache_cpu
from dsacp.vllm_cpu_kit.ops.packed_cache import DATA_BYTES, SCALE_BYTES, store_rows

TP, HEADS, DIM, BLOCK, WINDOW, SCALE = 2, 4, 512, 8, 5, 0.04


def draw(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


SINK = draw(HEADS, seed=3)


def make_cache() -> torch.Tensor:
    cache = torch.zeros(3, BLOCK * (DATA_BYTES + SCALE_BYTES), dtype=torch.uint8)
    store_rows(cache, torch.arange(3 * BLOCK), BLOCK, draw(3 * BLOCK, DIM, seed=1))
    return cache.view(3, BLOCK, -1)


def make_slots(tokens: int) -> torch.Tensor:
    """Token t reads 1 + t % WINDOW slots, -1 behind them."""
    slots = torch.full((tokens, 1, WINDOW), -1, dtype=torch.int32)
    for token in range(tokens):
        count = 1 + token % WINDOW
        slots[token, 0, :count] = (torch.arange(count) * 5 + token) % (3 * BLOCK)
    return slots


def make_layer(rank: int, tp: int) -> Any:
    heads = HEADS // tp
    sink = torch.full((heads + 2,), float("nan"))  # vLLM pads heads: padding must not be gathered
    sink[:heads] = SINK[rank * heads : (rank + 1) * heads]
    layer = SimpleNamespace(n_local_heads=heads, attn_sink=torch.nn.Parameter(sink), scale=SCALE)
    layer.swa_cache_layer = SimpleNamespace(kv_cache=make_cache(), prefix="draft")
    return layer


def make_metadata(tokens: int, rank: int, tp: int) -> Any:
    shard = TokenShard(tokens, tp, rank)
    indices = torch.full((shard.per_rank, 1, WINDOW), -1, dtype=torch.int32)
    rows = make_slots(tokens)[shard.start : shard.end]
    indices[: len(rows)] = rows
    local = SimpleNamespace(shard=shard, indices=indices)
    return SimpleNamespace(local=local, block_size=BLOCK, attention=Counter())


def expected(q: torch.Tensor, tokens: int) -> torch.Tensor:
    out = torch.empty_like(q[:tokens])
    slots, cache = make_slots(tokens).squeeze(1).long(), make_cache().view(3, -1)
    flash_mla_with_kvcache_cpu(
        out, q[:tokens], cache, slots, BLOCK, cache, slots[:, :0], 1, SINK, SCALE
    )
    return out


def attend(rank: int, tp: int, tokens: int, extra: int) -> None:
    """One rank: its heads of every token are those of all heads over all tokens, bit for bit."""
    layer, metadata = make_layer(rank, tp), make_metadata(tokens, rank, tp)
    gather_sinks(layer)
    assert torch.equal(getattr(layer, SINKS), SINK)
    own = slice(rank * HEADS // tp, (rank + 1) * HEADS // tp)
    q = draw(tokens + extra, HEADS, DIM, seed=2).to(torch.bfloat16)
    output = torch.full((tokens + extra, HEADS // tp, DIM), float("nan"), dtype=torch.bfloat16)
    sharded_attention(layer, q[:, own].contiguous(), output, metadata)
    assert torch.equal(output[:tokens], expected(q, tokens)[:, own])
    assert not bool(output[metadata.local.shard.padded :].any())
    assert metadata.attention["sharded_forwards"] == 1
    assert metadata.attention["all_to_alls"] == (2 if tp > 1 else 0)


def run_rank(rank: int, tp: int, folder: str, cases: list[tuple[int, int]]) -> None:
    try:
        from vllm.config import VllmConfig, set_current_vllm_config
        from vllm.distributed import init_distributed_environment, initialize_model_parallel

        torch.set_num_threads(1)
        override_ops()  # an AVX512 build's own operator sums in another order
        os.environ["VLLM_DIST_IDENT"] = f"dsacp-{os.getppid()}-{tp}"  # vLLM's launcher sets one
        with set_current_vllm_config(VllmConfig()):
            method = f"file://{folder}/store"
            init_distributed_environment(tp, rank, method, local_rank=rank, backend="gloo")
            initialize_model_parallel(tp)
            for tokens, extra in cases:
                attend(rank, tp, tokens, extra)
    except BaseException:
        Path(folder, f"error{rank}").write_text(traceback.format_exc())
        raise


@pytest.mark.parametrize("tp", [1, TP])
def test_every_rank_gets_its_heads_of_all_tokens(tmp_path, tp) -> None:
    """Odd batches, one token for two ranks, and a host that padded after the metadata."""
    register_kit()
    cases = [(7, 0), (1, 0), (6, 3), (5, 4)]
    context = multiprocessing.get_context("fork")
    arguments = [(rank, tp, str(tmp_path), cases) for rank in range(tp)]
    processes = [context.Process(target=run_rank, args=given) for given in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join(180)
    said = "\n".join(path.read_text() for path in tmp_path.glob("error*"))
    assert [process.exitcode for process in processes] == [0] * tp, said


@pytest.mark.parametrize("ours", [True, False])
def test_only_steps_with_our_rows_are_sharded(monkeypatch, ours) -> None:
    """A layer whose metadata is the stock builder's keeps the stock path, whatever its size."""
    from dsacp.vllm import attention

    class Stock:
        def forward_mqa(self, *_given) -> None:
            taken.append("stock")

        def process_weights_after_loading(self, _dtype) -> None:
            taken.append("loaded")

    taken: list[str] = []
    install_sharded_attention(Stock, lambda layer: layer.dsacp)
    install_sharded_attention(Stock, lambda _layer: True)
    monkeypatch.setattr(attention, "gather_sinks", lambda _layer: taken.append("sinks"))
    monkeypatch.setattr(attention, "sharded_attention", lambda *_: taken.append("ours"))
    metadata = make_metadata(4, 0, 2) if ours else SimpleNamespace()
    context = SimpleNamespace(attn_metadata={"draft": metadata})
    monkeypatch.setattr("vllm.forward_context.get_forward_context", lambda: context)
    layer = Stock()
    layer.swa_cache_layer = SimpleNamespace(prefix="draft", dsacp=ours)
    layer.process_weights_after_loading(torch.bfloat16)
    layer.forward_mqa(torch.zeros(9, 2, 8), None, None, None)
    assert taken == (["loaded", "sinks", "ours"] if ours else ["loaded", "stock"])
