"""What the guard of a builder counts and objects to. Needs no vLLM."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dsacp.core import DraftCapacity
from dsacp.drafting_cache import DraftBatch, DraftMetadataBuilder, StepMetadata
from dsacp.vllm.report import Reporter, read_reports
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
    decode_swa_lens: torch.Tensor | None = None
    prefill_swa_indices: None = None
    prefill_swa_lens: None = None


def bound_cache(rank: int) -> DraftMetadataBuilder:
    capacity = DraftCapacity.from_config(4, 16, 3, TP, layout="requests")
    cache = make_cache(capacity, 16, rank, "cpu", 64, v2=False)
    cache.bind({GROUP: torch.zeros(capacity.max_reqs, 4, dtype=torch.int32)})
    return cache


def build_step(cache: DraftMetadataBuilder, bank: int) -> tuple[StepMetadata, Metadata]:
    """A later draft step of three requests: two rows a rank, the last of them padding."""
    starts = torch.arange(REQS + 1, dtype=torch.int32)
    lengths = torch.full((REQS,), 9, dtype=torch.int32)
    batch = DraftBatch(num_reqs=REQS, num_tokens=REQS, query_start_loc=starts, seq_lens=lengths)
    step = cache.build_for_drafting(batch, bank)
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
    return step, Metadata(local, Host(REQS))


def make_step(rank: int) -> tuple[Reporter, StepMetadata, Metadata]:
    cache = bound_cache(rank)
    return Reporter(cache, ["layer"], v2=False, guard=True), *build_step(cache, 1)


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


@pytest.mark.parametrize("field_", ["", "indices", "lens", "valid", "token_to_req", "stock"])
def test_steps_that_share_what_layers_read_are_a_violation(field_) -> None:
    """One bank of rows, or one stock builder, for all draft steps: outside the cache's arena."""
    cache = bound_cache(0)
    reporter = Reporter(cache, ["layer"], v2=False, guard=True)
    first_step, first = build_step(cache, 1)
    second_step, second = build_step(cache, 2)
    if field_ == "stock":
        second.token_to_req_indices = first.token_to_req_indices[1:]
    elif field_:
        second.local = replace(second.local, **{field_: getattr(first.local, field_)})
    reporter.built("build_for_drafting", 1, first, first_step)
    reporter.built("build_for_drafting", 2, second, second_step)
    shared = [line for line in reporter.violations if "step1 and step2 on disjoint" in line]
    assert len(shared) == len(reporter.violations) == (1 if field_ else 0)


def test_a_build_that_a_graph_records_is_counted_and_not_checked(monkeypatch) -> None:
    """A check waits for the device, which ends a capture of V2's in-place update."""
    reporter, step, metadata = make_step(1)
    metadata.local.valid[-1] = True
    stream = SimpleNamespace(is_current_stream_capturing=lambda: True)
    monkeypatch.setattr(torch, "cpu", stream)
    reporter.built("update_draft_decode_metadata", 1, metadata, step)
    assert reporter.calls == {"update_draft_decode_metadata[1]": 1}
    assert not reporter.guarded
    assert reporter.violations == []
    monkeypatch.undo()
    reporter.built("update_draft_decode_metadata", 1, metadata, step)
    assert reporter.violations == ["alive padding past row 1"]


def test_a_folder_that_cannot_be_written_never_ends_the_engine(tmp_path, caplog) -> None:
    cache = bound_cache(0)
    step, metadata = build_step(cache, 1)
    (tmp_path / "file").touch()
    reporter = Reporter(cache, ["layer"], v2=False, folder=Path(tmp_path / "file" / "reports"))
    for _ in range(2):
        reporter.built("build_for_drafting", 1, metadata, step)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "the engine goes on" in line
    assert reporter.calls == {"build_for_drafting[1]": 2}


def test_reports_hold_what_layers_did(tmp_path) -> None:
    cache = bound_cache(0)
    step, metadata = build_step(cache, 1)
    for _ in range(2):
        reporter = Reporter(cache, ["layer"], v2=False, folder=tmp_path)
        reporter.attention["all_to_alls"] += 2
        reporter.built("build_for_drafting", 1, metadata, step)
    reports = read_reports(tmp_path)
    assert [report["attention"] for report in reports] == [{"all_to_alls": 2}] * 2
