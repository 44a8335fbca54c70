"""Wrong metadata gives wrong tokens: every field that attention reads is corrupted once."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace

import pytest
import torch

from dsacp.app.model.config import ModelConfig
from dsacp.app.model.inputs import Conversations
from dsacp.app.model.reference import ReferenceModel
from dsacp.app.model.weights import make_weights
from dsacp.app.replay.batches import HostBatch
from dsacp.app.replay.builders import RankBuilders, Setup
from dsacp.app.replay.executors import EagerExecutor
from dsacp.app.replay.settings import ReplayConfig, resolve
from dsacp.app.scheduling import Scheduler
from dsacp.app.traces.read import TraceRequest
from dsacp.drafting_cache import GroupMetadata, StepMetadata
from dsacp.rope_proxy import RopeRows

TP, K = 2, 3
TRACE = [TraceRequest(0.0, length, 40) for length in (140, 70, 33, 9)]
Change = Callable[[GroupMetadata], dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Probe:
    """A decode step of four requests: the model before it, and what it reads."""

    model: ReferenceModel
    target: tuple[tuple[StepMetadata, ...], ...]
    draft: tuple[tuple[StepMetadata, ...], ...]

    def tokens(self, target=None):
        """Sampled tokens and margins, on a copy of the caches."""
        result = deepcopy(self.model).target(self.target if target is None else target)
        used = result.margins != torch.inf
        return result.verified.tokens, result.margins[used]

    def drafts(self, draft):
        model = deepcopy(self.model)
        return model.draft(draft, model.target(self.target))


@pytest.fixture(scope="module")
def probe() -> Probe:
    torch.set_num_threads(1)
    config = ReplayConfig(
        tp=TP, draft_tokens=K, max_num_seqs=4, max_num_batched_tokens=64, capture_sizes=(16,)
    )
    shape, limits = ModelConfig(), resolve(config, TRACE)
    setup = Setup.of(config, limits, shape.attention.plan(limits.max_model_len))
    blocks = {group.name: group.num_blocks for group in setup.scheduler.groups}
    model = ReferenceModel.allocate(shape, make_weights(shape), setup.capacity, blocks)
    executor = EagerExecutor([RankBuilders.of(setup, rank) for rank in range(TP)], model)
    scheduler = Scheduler(setup.scheduler, TRACE, setup.tables)
    texts = Conversations({i: row.input_length for i, row in enumerate(TRACE)}, 512, 0)
    while (step := scheduler.next_step()) is not None:
        batch = HostBatch.of(step, 16 if step.uniform and step.num_reqs == 4 else None)
        model.inputs.write(texts.tokens(step))
        before = deepcopy(model)
        steps, result = executor.target(batch)
        verified = result.verified
        drafts, proposal = executor.draft(batch, verified.num_rejected[: step.num_reqs], result)
        if batch.bucket is not None:
            return Probe(before, steps, drafts)
        counts = verified.num_emitted[: step.num_reqs].tolist()
        rows = verified.tokens.tolist()
        sampled = [row[:count] for row, count in zip(rows, counts, strict=False)]
        texts.extend(step, sampled, proposal.drafts[: step.num_reqs].tolist())
        scheduler.finish(step, counts, [K * row.samples for row in step.rows])
    raise AssertionError("the trace has no decode step of four requests")


def changed(steps, names, change: Change, at: int = 0):
    """Return every rank's steps with groups ``names`` of step ``at`` replaced."""
    ranks = []
    for rank in steps:
        step = rank[at]
        groups = {
            name: replace(group, **change(group)) if name in names else group
            for name, group in step.groups.items()
        }
        ranks.append((*rank[:at], replace(step, groups=groups), *rank[at + 1 :]))
    return tuple(ranks)


def roll(field: str, by: int = 1) -> Change:
    return lambda group: {field: getattr(group, field).roll(by, 0).contiguous()}


def add(field: str, value: int) -> Change:
    return lambda group: {field: getattr(group, field) + value}


def compressor(**fields) -> Change:
    def change(group):
        rows = group.compressor
        return {"compressor": replace(rows, **{key: fn(rows) for key, fn in fields.items()})}

    return change


def nowhere(group: GroupMetadata) -> dict[str, torch.Tensor]:
    return {"slot_mapping": torch.full_like(group.slot_mapping, -1)}


CASES = {
    "window table of a neighbour": (["swa"], roll("block_table")),
    "compressed table of a neighbour": (["c4"], roll("block_table")),
    "indexer table of a neighbour": (["indexer"], roll("block_table")),
    "c128 table of a neighbour": (["c128"], roll("block_table")),
    "state table of a neighbour": (["c4_state"], roll("block_table")),
    "lengths one too long": (["swa", "c4", "c128"], add("local_seq_lens", 1)),
    "lengths one too short": (["swa"], add("local_seq_lens", -1)),
    "indexer lengths": (["indexer"], add("local_seq_lens", -12)),
    "slots of the next token": (["swa"], roll("slot_mapping")),
    "slots never written": (["swa"], nowhere),
    "state slots": (["c4_state"], roll("slot_mapping", 5)),
    "compressed slots": (["c4"], compressor(slot_mapping=lambda r: r.slot_mapping.roll(1))),
    "compressed positions": (["c4", "indexer"], compressor(positions=lambda r: r.positions - 4)),
    "compressed owners": (["c4"], compressor(requests=lambda r: r.requests.roll(1))),
    "compressed RoPE": (["c4"], compressor(cos=lambda r: -r.cos)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_field_changes_what_the_target_computes(probe: Probe, case: str):
    names, change = CASES[case]
    _, margins = probe.tokens()
    _, wrong = probe.tokens(changed(probe.target, names, change))
    assert margins.isfinite().all()
    # Any sum of other addends differs by far more than rounding, or is NaN where nothing was.
    assert not torch.allclose(wrong, margins, atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    "case",
    [
        "window table of a neighbour",
        "compressed table of a neighbour",
        "lengths one too short",
        "slots of the next token",
        "state table of a neighbour",
    ],
)
def test_a_wrong_field_changes_tokens(probe: Probe, case: str):
    names, change = CASES[case]
    tokens, _ = probe.tokens()
    assert not torch.equal(probe.tokens(changed(probe.target, names, change))[0], tokens)


def test_wrong_local_starts_change_tokens(probe: Probe):
    def change(group):
        starts = group.local_query_start_loc.clone()
        starts[1:-1] += 1
        return {"local_query_start_loc": starts}

    tokens, _ = probe.tokens()
    wrong, _ = probe.tokens(changed(probe.target, ["swa", "c4", "c128", "indexer"], change))
    assert not torch.equal(wrong, tokens)


@pytest.mark.parametrize("field", ["rope", "local_rope"])
def test_wrong_rope_rows_change_tokens(probe: Probe, field: str):
    def moved(proxy):
        return replace(proxy, rows={key: rows.roll(1, 0) for key, rows in proxy.rows.items()})

    target = tuple(
        (replace(step, **{field: RopeRows(*(moved(p) for p in (rope.cos, rope.sin)))}),)
        for (step,) in probe.target
        for rope in [getattr(step, field)]
    )
    tokens, _ = probe.tokens()
    assert not torch.equal(probe.tokens(target)[0], tokens)


@pytest.mark.parametrize(("name", "field"), [("c4", "sas_metadata"), ("indexer", "qli_metadata")])
def test_rows_that_a_plan_leaves_out_are_nan(probe: Probe, name: str, field: str):
    def change(group):
        words = getattr(group, field).clone()
        words[8:] = 0
        return {field: words}

    _, margins = probe.tokens(changed(probe.target, [name], change))
    assert margins.isnan().any()


@pytest.mark.parametrize("step", range(K))
def test_a_wrong_draft_field_changes_every_later_draft(probe: Probe, step: int):
    clean = probe.drafts(probe.draft)
    for change in (roll("block_table"), add("local_seq_lens", -1), roll("slot_mapping")):
        wrong = probe.drafts(changed(probe.draft, ["draft"], change, step))
        assert torch.equal(wrong.margins[:, :step], clean.margins[:, :step])
        assert not torch.allclose(
            wrong.margins[:, step:], clean.margins[:, step:], atol=1e-9, rtol=0
        )


def test_sharded_hidden_states_equal_unsharded_ones(probe: Probe):
    """Attention under sharding equals unsharded attention to 1e-10 in float64."""
    model = deepcopy(probe.model)
    sharded = model.target(probe.target).hidden
    (step,) = probe.target[0]
    whole = replace(
        step,
        shard=replace(step.shard, tp_size=1, tp_rank=0),
        local_rope=step.rope,
        groups={name: unsharded(group) for name, group in step.groups.items()},
    )
    single = replace(deepcopy(probe.model), target_caches=deepcopy(probe.model.target_caches[:1]))
    torch.testing.assert_close(single.target(((whole,),)).hidden, sharded, atol=1e-10, rtol=0)


def unsharded(group: GroupMetadata) -> GroupMetadata:
    """Global starts and lengths, and the plans of all rows: core 0 takes everything."""

    def plan(words):
        if words is None:
            return None
        words = torch.zeros_like(words)
        words[0], words[4] = 1, group.seq_lens.shape[0]
        return words

    return replace(
        group,
        local_query_start_loc=group.query_start_loc,
        local_seq_lens=group.seq_lens,
        sas_metadata=plan(group.sas_metadata),
        qli_metadata=plan(group.qli_metadata),
    )
