"""DSpark's block (upstream U35, U36), and the indexer's plan without host syncs."""

import random
from typing import Any

import pytest
import torch
from ascend_double import HostDouble, install
from ascend_double.batches import BLOCK, Batch, common_metadata
from ascend_double.calls import check_calls, recorded
from ascend_double.compare import TOTALS, Parity
from ascend_double.host import WINDOW
from ascend_double.ops import CALLS, NAMES

from dsacp.core import round_up
from dsacp.vllm.ascend.plugin import choose

BLOCKS = 30
"""Random batches of one configuration."""


def classes() -> tuple[Any, Any]:
    stock = install().dsa_cp.AscendDSACPMetadataBuilder
    return stock, choose(stock)


def block_metadata(batch: Batch, double: HostDouble, seed: int) -> Any:
    common = common_metadata(batch, double, random.Random(seed))
    common.causal = False
    return common


def random_block(rng: random.Random, double: HostDouble) -> Batch:
    """Draw a batch of whole blocks, padded to the ranks or not."""
    count, block = rng.randint(1, double.max_num_seqs), double.drafts
    contexts = tuple(
        rng.choice((0, rng.randint(0, 200), rng.randint(0, 3900))) for _ in range(count)
    )
    tokens = count * block
    if rng.random() < 0.5:
        tokens = round_up(tokens, double.tp_size)
    return Batch(
        "verify", (block,) * count, contexts, tokens, count, (False,) * count, (0,) * count
    )


@pytest.mark.parametrize(("tp", "rank"), [(1, 0), (3, 2), (4, 0), (4, 1), (4, 3)])
@pytest.mark.parametrize("drafts", [1, 4])
@pytest.mark.parametrize("causal", [False, True], ids=["block", "causal"])
def test_dspark_first_step_arrives_as_draft_index_1(
    causal: bool, drafts: int, tp: int, rank: int
) -> None:
    """One block of K tokens a request; every field on random batches.

    The model says whether its queries see each other (0.26: ``get_draft_attn_causal``).
    """
    double = HostDouble(drafts, tp, rank, max_num_seqs=16, method="dspark")
    pair = [double.builder(cls) for cls in classes()]
    rng = random.Random(100 * drafts + 10 * tp + rank)
    for _ in range(BLOCKS):
        batch, seed = random_block(rng, double), rng.randrange(1 << 30)
        steps, calls = [], []
        for builder in pair:
            common = block_metadata(batch, double, seed)
            common.causal = causal
            with recorded() as asked:
                steps.append(builder.build_for_drafting(common, 1, block_size=BLOCK))
            calls.append(asked)
        check_calls(*calls)
        reach = WINDOW - 1 if causal else WINDOW + drafts - 1
        parity = Parity(double, window_left=reach)
        parity.padded_tokens = round_up(batch.tokens, tp)
        parity.check(*steps, sum(batch.lengths), batch.real)
        assert steps[1].req_metadata.ori_win_left == reach
        assert parity.counts["dspark_swa_indices"] == 1
        TOTALS["DSpark blocks"] += 1


def test_dspark_buffers_do_not_move() -> None:
    double = HostDouble(4, 2, 1, max_num_seqs=16, method="dspark")
    builder = double.builder(classes()[1])
    seen = set()
    for seed in range(3):
        contexts = (10 + seed, 900, 40)
        batch = Batch("verify", (4, 4, 4), contexts, 12, 3, (False,) * 3, (0, 0, 0))
        step = builder.build_for_drafting(block_metadata(batch, double, seed), 1, block_size=BLOCK)
        request = step.req_metadata
        seen.add((request.dspark_swa_indices.data_ptr(), request.sas_metadata.data_ptr()))
    assert len(seen) == 1


def target(builder: Any, double: HostDouble, seed: int = 0, **extra: Any) -> Any:
    batch = Batch("graph", (4, 4, 4), (96, 53, 5), 16, 4, (False,) * 3, (0, 0, 0))
    common = common_metadata(batch, double, random.Random(seed))
    return builder.build(0, common, num_reqs_actual=3, block_size=BLOCK, **extra)


def test_indexer_plan_asks_the_device_for_nothing() -> None:
    """Upstream reads two maxima back every step; the op ignores both (upstream U12, U23)."""
    double = HostDouble(3, 4, 1)
    builder = double.builder(classes()[1], ratio=4)
    target(builder, double, common_ratio_to_sas_metadata={})
    read = []
    stock_item = torch.Tensor.item

    def item(tensor: torch.Tensor) -> Any:
        read.append(tensor.untyped_storage().data_ptr())
        return stock_item(tensor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "max", lambda *_args, **_kw: pytest.fail("a device maximum"))
        patch.setattr(torch.Tensor, "item", item)
        step = target(builder, double, 1, common_ratio_to_sas_metadata={})
    assert step.req_metadata.qli_metadata is not None
    ours = {storage.untyped_storage().data_ptr() for storage in builder.dsacp_storages()}
    assert not ours.intersection(read)


def test_indexer_quant_modes_are_the_hosts_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's method makes the call, so what it passes is what arrives."""
    stock, ours = classes()
    double = HostDouble(3, 4, 1)
    stock_plan = stock._build_qli_metadata
    op = torch.ops._C_ascend.npu_vllm_quant_lightning_indexer_metadata

    def plan(self: Any, query_start_loc: Any, seq_lens: Any, seq_lens_q: Any, num_reqs: int) -> Any:
        del seq_lens_q
        words = op(
            64, 1, 128, 3, 2, actual_seq_lengths_query=query_start_loc[1:].clone(),
            actual_seq_lengths_key=seq_lens.clone(), batch_size=num_reqs, cmp_ratio=4,
        )  # fmt: skip
        self.req_qli_metadata[:1024] = words
        return self.req_qli_metadata[:1024]

    monkeypatch.setattr(stock, "_build_qli_metadata", plan)
    CALLS.clear()
    target(double.builder(ours, ratio=4), double, common_ratio_to_sas_metadata={})
    (call,) = [arguments for name, arguments in CALLS if name == NAMES[2]]
    assert (call["query_quant_mode"], call["key_quant_mode"]) == (3, 2)
    assert stock_plan is not plan


def test_groups_of_one_step_share_a_plan() -> None:
    """Each ratio is planned once a step, each group keeps its own words."""
    double = HostDouble(3, 2, 0)
    first, second = (double.builder(classes()[1], layer=f"model.layers.{n}.attn") for n in (0, 43))
    shared: dict[str, Any] = {}
    CALLS.clear()
    pair = [target(b, double, common_ratio_to_sas_metadata=shared) for b in (first, second)]
    assert len(CALLS) == 1
    words = [step.req_metadata.sas_metadata for step in pair]
    assert torch.equal(*words)
    assert words[0].data_ptr() != words[1].data_ptr()
