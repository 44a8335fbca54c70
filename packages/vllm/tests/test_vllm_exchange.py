"""All-to-all between heads and tokens, over gloo in real processes. Needs no vLLM."""

import multiprocessing
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from dsacp.vllm.exchange import heads_to_tokens, tokens_to_heads

HEADS, DIM = 4, 8


def whole(tokens: int) -> torch.Tensor:
    values = torch.arange(tokens * HEADS * DIM, dtype=torch.float32) % 251
    return values.view(tokens, HEADS, DIM).to(torch.bfloat16)


def exchange(rank: int, tp: int, tokens: int, folder: str) -> None:
    store = dist.FileStore(f"{folder}/store", tp)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=tp)
    heads, rows = HEADS // tp, tokens // tp
    own_heads = slice(rank * heads, (rank + 1) * heads)
    counts: Counter[str] = Counter()
    mine = heads_to_tokens(whole(tokens)[:, own_heads], tp, None, counts)
    assert torch.equal(mine, whole(tokens)[rank * rows : (rank + 1) * rows])
    assert counts == {"all_to_alls": 1}
    back = tokens_to_heads(mine, tp, None, counts)
    assert torch.equal(back, whole(tokens)[:, own_heads])
    assert counts == {"all_to_alls": 2}
    Path(folder, f"done{rank}").touch()
    dist.destroy_process_group()


@pytest.mark.parametrize(("tp", "tokens"), [(2, 6)])
def test_every_rank_gets_all_heads_of_its_tokens_and_returns_them(tmp_path, tp, tokens) -> None:
    context = multiprocessing.get_context("fork")
    arguments = [(rank, tp, tokens, str(tmp_path)) for rank in range(tp)]
    processes = [context.Process(target=exchange, args=given) for given in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * tp


def test_one_rank_exchanges_nothing() -> None:
    x, counts = whole(3), Counter()
    assert heads_to_tokens(x, 1, None, counts) is x
    assert tokens_to_heads(x, 1, None, counts) is x
    assert not counts
