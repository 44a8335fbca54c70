"""What the guard of a builder counts and objects to. Needs no vLLM."""

from dataclasses import dataclass, field

import pytest
import torch

from dsacp.core import DraftCapacity
from dsacp.drafting_cache import DraftBatch, StepMetadata
from dsacp.vllm.report import Reporter
from dsacp.vllm.steps import GROUP, make_cache
from dsacp.vllm.window import LocalWindow

REQS, TP, WINDOW = 3, 2, 8


@dataclass
class Host:
    num_actual_tokens: int


@dataclass
class Metadata:
    """The fields of window metadata whose addresses are kept."""

    local: LocalWindow
    host: Host
    token_to_req_indices: torch.Tensor = field(default_factory=lambda: torch.zeros(4))
    query_start_loc: None = None
    seq_lens: None = None
    slot_mapping: None = None
    block_table: None = None
    is_valid_token: None = None
    decode_swa_indices: None = None
    decode_swa_lens: None = None


def make_step(rank: int) -> tuple[Reporter, StepMetadata, Metadata]:
    """A later draft step of three requests: two rows a rank, the last of them padding."""
    capacity = DraftCapacity.from_config(4, 16, 3, TP, layout="requests")
    cache = make_cache(capacity, 16, rank, "cpu", 64, v2=False)
    cache.bind({GROUP: torch.zeros(capacity.max_reqs, 4, dtype=torch.int32)})
    starts = torch.arange(REQS + 1, dtype=torch.int32)
    lengths = torch.full((REQS,), 9, dtype=torch.int32)
    batch = DraftBatch(num_reqs=REQS, num_tokens=REQS, query_start_loc=starts, seq_lens=lengths)
    step = cache.build_for_drafting(batch, 1)
    group = step.groups[GROUP]
    rows = step.shard.per_rank
    real = min(max(REQS - step.shard.start, 0), rows)
    local = LocalWindow(
        shard=step.shard,
        query_start_loc=group.local_query_start_loc,
        seq_lens=group.local_seq_lens,
        token_to_req=torch.zeros(rows, dtype=torch.int32),
        valid=torch.arange(rows) < real,
        indices=torch.full((rows, 1, WINDOW), -1, dtype=torch.int32),
        lens=torch.zeros(rows, dtype=torch.int32),
    )
    return Reporter(cache, ["layer"], v2=False, guard=True), step, Metadata(local, Host(REQS))


@pytest.mark.parametrize(("rank", "padding"), [(0, 0), (1, 1)])
def test_a_rounded_up_step_has_its_padding_counted(rank, padding) -> None:
    """A later step's shard is rounded up to the ranks: it calls its own padding real."""
    reporter, step, metadata = make_step(rank)
    reporter.built("build_for_drafting", 1, metadata, step)
    assert reporter.violations == []
    assert reporter.guarded["padding_rows"] == padding
    assert reporter.calls == {"build_for_drafting[1]": 1}


@pytest.mark.parametrize("what", ["written", "read"])
def test_living_padding_is_a_violation(what) -> None:
    reporter, step, metadata = make_step(1)
    if what == "written":
        metadata.local.valid[-1] = True
    else:
        metadata.local.indices[-1, 0, 3] = 0
    reporter.built("build_for_drafting", 1, metadata, step)
    assert reporter.violations == ["alive padding past row 1"]


def test_a_moved_field_is_a_violation() -> None:
    reporter, step, metadata = make_step(0)
    reporter.built("build_for_drafting", 1, metadata, step)
    metadata.token_to_req_indices = torch.zeros(4)
    kept = metadata.token_to_req_indices
    reporter.built("build_for_drafting", 1, metadata, step)
    (line,) = reporter.violations
    assert line.startswith("moved: token_to_req_indices")
    assert line.endswith(f"{kept.data_ptr():#x}")


def test_an_overwritten_guard_word_is_a_violation() -> None:
    reporter, step, metadata = make_step(0)
    reporter.built("build_for_drafting", 1, metadata, step)
    storage = step.groups[GROUP].seq_lens
    whole = storage.as_strided((storage.untyped_storage().nbytes() // 4,), (1,), 0)
    whole[0] = 7
    reporter.built("build_for_drafting", 1, metadata, step)
    assert len(reporter.violations) == 1
