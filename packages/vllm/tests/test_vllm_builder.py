"""Our builder beside vLLM's own, hook by hook, on the same batches. Needs vLLM on a CPU."""

import importlib.util
import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch

if importlib.util.find_spec("vllm") is None:
    pytest.skip("needs vLLM: nox -s vllm", allow_module_level=True)

from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.mla import sparse_swa as swa
from vllm.v1.kv_cache_interface import SlidingWindowMLASpec

from dsacp.core import CapacityError
from dsacp.drafting_cache import DraftMetadataBuilder
from dsacp.graph import check_isolated
from dsacp.vllm import aside
from dsacp.vllm.builder import make_builder_class
from dsacp.vllm.field_map import LOCAL
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
        compilation_config=SimpleNamespace(cudagraph_capture_sizes=[], static_forward_context={}),
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

    return SimpleNamespace(
        ours=lambda: make(ours), stock=lambda: make(stock), config=config, patch=monkeypatch
    )


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


class Rank:
    """One rank of several: what vLLM says of the group, and what the other ranks found."""

    def __init__(self, builders: Any, tp: int, rank: int, others_fine: bool = True) -> None:
        where = "vllm.distributed.get_tensor_model_parallel_"
        builders.patch.setattr(f"{where}world_size", lambda: tp)
        builders.patch.setattr(f"{where}rank", lambda: rank)
        self.asked: list[bool] = []

        def all_ranks(fine: bool, tp_size: int) -> bool:
            assert tp_size == tp
            self.asked.append(fine)
            return fine and others_fine

        builders.patch.setattr("dsacp.vllm.builder.all_ranks", all_ranks)


@pytest.fixture
def said(monkeypatch, caplog) -> Any:
    monkeypatch.setattr(aside.logger, "propagate", True)
    caplog.set_level("WARNING", logger=aside.logger.name)
    return lambda: [record.getMessage() for record in caplog.records]


def fail_for(patch: Any, fails: Any) -> None:
    """Let the library refuse the batches that ``fails`` names: an injected builder."""
    stock = DraftMetadataBuilder.build_for_drafting

    def build_for_drafting(self: Any, batch: Any, draft_index: int) -> Any:
        if fails(batch, draft_index):
            raise CapacityError(f"needs {batch.num_reqs} requests, buffer holds fewer")
        return stock(self, batch, draft_index)

    patch.setattr(DraftMetadataBuilder, "build_for_drafting", build_for_drafting)


@pytest.mark.parametrize("rank", [0, 3])
def test_a_dry_run_decides_before_anything_is_served(builders, said, rank) -> None:
    """At tp 4 with max_num_seqs 6 the first draft step of 5 requests ended a real engine."""
    other = Rank(builders, 4, rank)
    builders.config.scheduler_config.max_num_seqs = 6
    fail_for(builders.patch, lambda batch, index: index > 0 and batch.num_reqs >= 5)
    ours, stock = builders.ours(), builders.stock()
    assert other.asked == [False]
    (line,) = said()
    assert line.startswith(
        "dsacp stands aside, the engine is unchanged: found a dry run that fails"
    )
    for bank in range(1, K):
        assert f"build_for_drafting[{bank}] of 5 requests" in line
        assert f"build_for_drafting[{bank}] of 6 requests" in line
    table = make_tables(1)
    for hook in ("build", "build_for_drafting"):
        made = [
            builder.build(0, common) if hook == "build" else builder.build_for_drafting(common, 1)
            for builder in (ours, stock)
            for common in [make_common([1] * 5, [30, 90, 5, 1, 60], table)]
        ]
        check_same(*made)
        assert not hasattr(made[0], "local"), "attention stays head-sharded"
    assert not ours.supports_update_block_table, "the stock builder cannot"


def test_the_sizes_that_ended_an_engine_are_served(builders, said) -> None:
    Rank(builders, 4, 1)
    builders.config.scheduler_config.max_num_seqs = 6
    ours = builders.ours()
    assert said() == []
    common = make_common([1] * 5, [30, 90, 5, 1, 60], make_tables(1))
    assert ours.build_for_drafting(common, 1).local is not None


def test_ranks_stand_aside_together(builders, said) -> None:
    """One rank alone would wait for an exchange of tokens that the others never make."""
    Rank(builders, 2, 0, others_fine=False)
    ours = builders.ours()
    assert not hasattr(ours.build(0, make_common([4], [9], TABLE)), "local")
    (line,) = said()
    assert "another rank" in line


def test_a_dry_run_leaves_nothing_behind(builders, said) -> None:
    """It binds a block table of its own: the engine's would be one that moved."""
    ours = builders.ours()
    ours.build(0, make_common([4, 4], [40, 9], make_tables(7)))
    assert said() == []
    assert ours.reporter.calls == {"build[0]": 1}
    assert ours.reporter.violations == []


LATE = ("build", "build_for_drafting", "update_block_table", "update_draft_decode_metadata")


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("hook", LATE)
def test_a_build_that_fails_later_does_not_end_the_engine(builders, said, hook, tp) -> None:
    """Its batch, and all that follow, are built from the framework's numbers; one line says so."""
    Rank(builders, tp, tp - 1)
    builders.config.use_v2_model_runner = hook == "update_draft_decode_metadata"
    ours, twin = builders.ours(), builders.ours()
    queries, lengths = ([1, 1, 1], [30, 90, 5]) if hook != "build" else ([4, 2, 30], [200, 33, 64])
    first = ours.build(0, make_common(queries, lengths, TABLE))
    later = make_common(queries, [length + 1 for length in lengths], TABLE)
    expected = twin.build(0, make_common(queries, [length + 1 for length in lengths], TABLE))
    expected = tensors_of_rows(expected)
    fail_for(builders.patch, lambda _batch, _index: True)
    assert said() == []
    found = call(ours, hook, first, later)
    assert tensors_of_rows(found).keys() == expected.keys()
    for name, tensor in tensors_of_rows(found).items():
        assert torch.equal(tensor, expected[name]), name
    (line,) = said()
    assert f"a {hook} that failed while serving (CapacityError" in line
    call(ours, "build", first, later)
    assert len(said()) == 1


def call(builder: Any, hook: str, metadata: Any, common: Any) -> Any:
    if hook == "build":
        return builder.build(0, common)
    if hook == "build_for_drafting":
        return builder.build_for_drafting(common, 0)
    if hook == "update_block_table":
        metadata.host = common
        return builder.update_block_table(metadata, TABLE[: common.num_reqs], common.slot_mapping)
    metadata.host.seq_lens.copy_(common.seq_lens)
    metadata.host.slot_mapping.copy_(common.slot_mapping)
    builder.update_draft_decode_metadata(metadata)
    return metadata


def tensors_of_rows(metadata: Any) -> dict[str, torch.Tensor]:
    """What layers read of a step, rows of the rank included; slots up to the batch's."""
    local = metadata.local
    stock = {name: getattr(metadata, name) for name in FIELDS}
    rows = {f"local.{name}": getattr(local, name) for name in LOCAL}
    rows |= {name: tensor for name, tensor in stock.items() if tensor is not None}
    return {name: tensor.clone() for name, tensor in rows.items()}


def test_a_graph_that_holds_our_buffers_is_never_left_with_them(builders, said) -> None:
    """A replay would read the batch before: the one error that goes on to the framework."""
    ours = builders.ours()
    ours.build_for_cudagraph_capture(make_common([4, 4], [4, 4], TABLE))
    fail_for(builders.patch, lambda _batch, _index: True)
    with pytest.raises(CapacityError) as raised:
        ours.build(0, make_common([4, 4], [40, 9], TABLE))
    assert "a graph of this engine holds its buffers" in raised.value.__notes__[0]
    assert said() == []


@pytest.mark.parametrize("v2", [False, True])
def test_chunks_of_unfinished_prompts_take_no_part_in_later_steps(builders, v2) -> None:
    """A later step of a chunk wrote the slot of the prompt's next token."""
    builders.config.use_v2_model_runner = v2
    engine = aside.engine_of(builders.config)
    engine.unfinished = torch.tensor([False, True, False, True, False])
    ours = builders.ours()
    ours.drafts_later = v2
    common = make_common([1, 1, 1], [30, 90, 5], TABLE)
    later = ours.build(0, common) if v2 else ours.build_for_drafting(common, 1)
    if v2:
        ours.update_draft_decode_metadata(later)
    expected = common.slot_mapping.clone()
    expected[1] = -1
    assert later.slot_mapping.tolist() == expected.tolist()
    assert later.seq_lens.tolist() == [30, 0, 5]
    assert later.local.valid.tolist() == [True, False, True]
    assert later.local.lens.tolist()[1] == 0
    if not v2:
        step0 = ours.build_for_drafting(make_common([4, 9, 4], [30, 90, 5], TABLE), 0)
        assert bool((step0.slot_mapping >= 0).all()), "the first pass fills the chunk's cache"
    engine.unfinished.zero_()
    again = ours.build(0, common) if v2 else ours.build_for_drafting(common, 1)
    assert again.slot_mapping.tolist() == common.slot_mapping.tolist()


def test_runners_of_this_vllm_mark_unfinished_prompts() -> None:
    """What ``drafting`` reads is there: one that is gone would let every chunk draft again."""
    from vllm.v1.worker.gpu.spec_decode.speculator import DraftModelSpeculator
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    made = (GPUModelRunner.__init__, DraftModelSpeculator.__init__)
    runner, speculator = map(inspect.unwrap, made)
    assert "discard_request_mask" in runner.__code__.co_names
    assert "num_sampled" in inspect.signature(DraftModelSpeculator.propose).parameters
    names = DraftModelSpeculator.set_attn.__code__.co_names
    assert "attn_groups" in names
    assert {"max_num_reqs", "device"} <= set(speculator.__code__.co_names)
