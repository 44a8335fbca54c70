"""Our builder beside vLLM's own, hook by hook, on the same batches. Needs vLLM on a CPU."""

import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest
import torch

if importlib.util.find_spec("vllm") is None:
    pytest.skip("needs vLLM: nox -s vllm", allow_module_level=True)

from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.mla import sparse_swa as swa
from vllm.v1.kv_cache_interface import SlidingWindowMLASpec

from dsacp.graph import check_isolated
from dsacp.vllm.builder import make_builder_class
from dsacp.vllm.report import addresses
from dsacp.vllm_cpu_kit import register as register_kit

BLOCK, WINDOW, SEQS, K, TOKENS = 32, 24, 5, 3, 96
FIELDS = (
    "query_start_loc", "seq_lens", "slot_mapping", "block_table", "token_to_req_indices",
    "is_valid_token", "decode_swa_indices", "decode_swa_lens", "prefill_swa_indices",
    "prefill_swa_lens",
)  # fmt: skip
NUMBERS = ("num_decodes", "num_prefills", "num_decode_tokens", "num_prefill_tokens", "block_size")


def make_tables(seed: int) -> torch.Tensor:
    order = torch.randperm(SEQS * 8, generator=torch.Generator().manual_seed(seed))
    return order.int().view(SEQS, 8)


TABLE = make_tables(3)


def make_common(queries: list[int], lengths: list[int], table: torch.Tensor) -> Any:
    starts = torch.tensor([0, *torch.tensor(queries).cumsum(0).tolist()], dtype=torch.int32)
    slots = [
        int(table[row, position // BLOCK]) * BLOCK + position % BLOCK
        for row, (count, length) in enumerate(zip(queries, lengths, strict=True))
        for position in range(length - count, length)
    ]
    seq_lens = torch.tensor(lengths, dtype=torch.int32)
    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts.clone(),
        seq_lens=seq_lens,
        seq_lens_cpu_upper_bound=seq_lens.clone(),
        num_reqs=len(queries),
        num_actual_tokens=sum(queries),
        max_query_len=max(queries),
        max_seq_len=max(lengths),
        block_table_tensor=table[: len(queries)],
        slot_mapping=torch.tensor(slots, dtype=torch.int64),
    )


@pytest.fixture
def builders(monkeypatch) -> Any:
    """Makers of our builder and of the stock one, for one engine of one rank."""
    register_kit()
    monkeypatch.setattr("vllm.distributed.get_tensor_model_parallel_rank", lambda: 0)
    monkeypatch.setattr("vllm.distributed.get_tensor_model_parallel_world_size", lambda: 1)
    monkeypatch.setenv("DSACP_GUARD", "1")
    config = SimpleNamespace(
        model_config=SimpleNamespace(
            max_model_len=256,
            hf_config=SimpleNamespace(sliding_window=WINDOW, compress_ratios=[1, 4]),
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=SEQS, max_num_batched_tokens=TOKENS),
        speculative_config=SimpleNamespace(
            num_speculative_tokens=K, parallel_drafting=False, use_dspark=lambda: False
        ),
        compilation_config=SimpleNamespace(cudagraph_capture_sizes=[]),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1),
        use_v2_model_runner=False,
    )
    spec = SlidingWindowMLASpec(
        block_size=BLOCK, num_kv_heads=1, head_size=512, dtype=torch.uint8,
        sliding_window=WINDOW, cache_dtype_str="fp8_ds_mla", model_version="deepseek_v4",
    )  # fmt: skip
    stock = swa.DeepseekSparseSWABackend.get_builder_cls()
    ours = make_builder_class(stock, swa.DeepseekSparseSWAMetadata)

    def make(cls: Any) -> Any:
        return cls(spec, ["model.layers.4.attn.swa_cache"], config, torch.device("cpu"))

    return SimpleNamespace(ours=lambda: make(ours), stock=lambda: make(stock))


def check_same(found: Any, expected: Any) -> None:
    """Tensors hold the same; ours may be padded behind the host's tokens."""
    for name in NUMBERS:
        assert getattr(found, name) == getattr(expected, name), name
    for name in FIELDS:
        mine, stock = getattr(found, name), getattr(expected, name)
        assert (mine is None) == (stock is None), name
        if stock is not None:
            assert mine.dtype == stock.dtype, name
            assert torch.equal(mine, stock), name


BATCHES = [
    ([4, 4, 4], [40, 7, 130]),
    ([4, 2, 30], [200, 33, 64]),
    ([1, 1, 1, 1], [30, 90, 5, 1]),
]


@pytest.mark.parametrize(("queries", "lengths"), BATCHES)
def test_another_groups_table_gives_what_a_build_on_it_gives(builders, queries, lengths) -> None:
    """vLLM builds a batch for one group and asks the next group's builder to change the table."""
    near, far = make_tables(1), make_tables(2)
    first, second = builders.ours(), builders.ours()
    built = first.build(0, make_common(queries, lengths, near))
    before = {
        name: tensor.clone() for name in FIELDS if (tensor := getattr(built, name)) is not None
    }
    other = make_common(queries, lengths, far)
    updated = second.update_block_table(built, other.block_table_tensor, other.slot_mapping)
    check_same(updated, builders.stock().build(0, other))
    assert not torch.equal(updated.slot_mapping, built.slot_mapping)
    assert all(torch.equal(getattr(built, name), value) for name, value in before.items())
    owners = {"first": [getattr(built, name) for name in before], "second": updated.local}
    check_isolated(owners, built.block_table)
    assert updated.local.indices.shape[0] == sum(queries)
    assert second.reporter.calls == {"update_block_table[0]": 1}
    assert first.reporter.violations == second.reporter.violations == []


@pytest.mark.parametrize("queries", [[4, 4, 4], [1, 1, 1, 1]])
def test_what_a_graph_captures_is_what_later_builds_fill(builders, queries) -> None:
    """Capture sees a dummy batch; a batch of its shape lands in the tensors that it recorded."""
    table, count = make_tables(1), len(queries)
    dummy = make_common(queries, queries, table)
    dummy.slot_mapping.fill_(-1)
    ours = builders.ours()
    captured = ours.build_for_cudagraph_capture(dummy)
    check_same(captured, builders.stock().build_for_cudagraph_capture(dummy))
    assert not bool(captured.local.valid.any())
    addressed = addresses(captured)
    batch = make_common(queries, [50 + 9 * row for row in range(count)], table)
    later = ours.build(0, batch)
    assert addresses(later) == addressed
    stock = builders.stock().build(0, batch)
    check_same(later, stock)
    for name in ("query_start_loc", "seq_lens", "slot_mapping", "decode_swa_indices"):
        assert torch.equal(getattr(captured, name), getattr(stock, name)), name
    assert ours.reporter.calls == {"build[0]": 2}
    assert ours.reporter.violations == []


@pytest.mark.parametrize("shared", ["_banks", "_stock"])
def test_the_guard_sees_draft_steps_that_share_buffers(builders, shared) -> None:
    """One window bank, or one stock builder, for all steps: layers read it, the arena does not."""
    ours = builders.ours()
    owner = ours.buffers if shared == "_banks" else ours
    setattr(owner, shared, [getattr(owner, shared)[0]] * K)
    for bank in range(K):
        queries = [4, 4, 4] if bank == 0 else [1, 1, 1]
        ours.build_for_drafting(make_common(queries, [40 + bank, 9, 90], TABLE), bank)
    assert any("disjoint" in line for line in ours.reporter.violations)


def test_draft_steps_of_a_plain_builder_share_nothing(builders) -> None:
    ours = builders.ours()
    for lengths in ([40, 9, 90], [44, 13, 94]):
        for bank in range(K):
            queries = [4, 4, 4] if bank == 0 else [1, 1, 1]
            ours.build_for_drafting(make_common(queries, lengths, TABLE), bank)
    assert ours.reporter.guarded["builds"] == 2 * K
    assert ours.reporter.violations == []


def test_the_stock_builder_fails_on_kinds_that_its_subclass_forgets(builders, monkeypatch) -> None:
    """vLLM 0.32 on any CPU: KeyError 'c1a'. No error: drop the kit's ``tile_keys.py``."""
    kinds = ("swaonly", "c4a", "c128a")
    stock = builders.stock()
    monkeypatch.setattr(stock, "build_tile_scheduler", lambda _tokens: dict.fromkeys(kinds))
    with pytest.raises(KeyError, match="c1a"):
        stock.build(0, make_common([4, 4], [40, 9], TABLE))
