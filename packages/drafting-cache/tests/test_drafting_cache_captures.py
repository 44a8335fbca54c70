"""What a capture runs and records writes no live slot, whatever was served before."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from dsacp.drafting_cache import BoundInputs, DraftBatch

Make = Callable[..., Any]
graph = pytest.importorskip("dsacp.graph", reason="captures need dsacp-graph")


def words(host: Any) -> list[torch.Tensor]:
    return [storage.view(torch.int32).clone() for storage in host.builder.storages()]


def live(steps: Any) -> list[int]:
    return [int(step.groups["draft0"].slot_mapping.ge(0).sum()) for step in steps]


def serve_eager(host: Any, batch: DraftBatch) -> None:
    host.builder.build_all(batch)


def serve_staged(host: Any, batch: DraftBatch) -> None:
    host.builder.stage(batch)
    host.builder.refresh(16)


@pytest.mark.parametrize("serve", [serve_eager, serve_staged])
@pytest.mark.parametrize("warmup", [0, 1])
@pytest.mark.parametrize("bucket", [8, 16])
def test_a_capture_after_serving_runs_on_no_live_slot(
    make_host: Make, serve: Callable[[Any, DraftBatch], None], warmup: int, bucket: int
) -> None:
    """A capture's own runs wrote 12, 3 and 3 slots of the batch served last: its KV was lost."""
    host, fresh = make_host(), make_host()
    serve(host, host.batch([4] * 3, [100, 57, 9], [0, 3, 1], bucket=16))
    seen: list[list[int]] = []

    def draft() -> None:
        seen.append(live(host.builder.refresh(bucket)))

    captured = graph.capture(draft, device="cpu", warmup=warmup, strict=False)
    assert seen == [[0, 0, 0]] * (warmup + 1)
    batch = host.batch([4, 4], [33, 200], [1, 2], bucket=bucket)
    host.builder.stage(batch)
    captured.replay()
    fresh.builder.build_all(batch)
    assert all(map(torch.equal, words(host), words(fresh)))


def test_a_batch_staged_for_its_refresh_is_computed(make_host: Make) -> None:
    host, fresh = make_host(), make_host()
    batch = host.batch([4] * 3, [100, 57, 9], bucket=16)
    host.builder.build_all(host.batch([4, 4], [33, 200], bucket=8))
    host.builder.stage(batch)
    assert live(host.builder.refresh(16)) == [12, 3, 3]
    fresh.builder.build_all(batch)
    assert all(map(torch.equal, words(host), words(fresh)))


@pytest.mark.parametrize("other", [{"bucket": 8}, {"num_steps": 2}])
def test_a_batch_staged_for_other_shapes_is_not_computed(
    make_host: Make, other: dict[str, int]
) -> None:
    host = make_host()
    host.builder.stage(host.batch([4, 4], [33, 200], bucket=16))
    assert set(live(host.builder.refresh(**{"bucket": 16, **other}))) == {0}


def test_stage_idle_before_a_bucket_is_captured_again(make_host: Make) -> None:
    """A replay cannot be seen: the batch staged for it looks as if staged for the capture."""
    host = make_host()
    host.builder.stage(host.batch([4] * 3, [100, 57, 9], bucket=16))
    captured = graph.capture(lambda: host.builder.refresh(16), device="cpu")
    host.builder.stage(host.batch([4] * 3, [110, 67, 19], bucket=16))
    captured.replay()
    host.builder.stage_idle(16)
    assert live(host.builder.refresh(16)) == [0, 0, 0]


def test_stage_idle_resets_a_bound_count(make_host: Make) -> None:
    """With bound inputs a capture reads the framework's own count, of the batch served last."""
    host = make_host()
    rows = host.builder.config.capacity.max_reqs
    inputs = BoundInputs(*(torch.zeros(n, dtype=torch.int32) for n in (rows + 1, rows, rows, 1)))
    host.builder.release()
    host.builder.restore()
    host.builder.bind(host.tables, inputs)
    inputs.query_start_loc[:3] = torch.tensor([0, 4, 8])
    inputs.seq_lens[:2] = 40
    inputs.num_reqs.fill_(2)
    announced = DraftBatch(2, 8, bucket=8)
    assert live(host.builder.build_all(announced)) == [8, 2, 2]
    host.builder.stage_idle(8)
    assert live(host.builder.refresh(8)) == [0, 0, 0]
    inputs.num_reqs.fill_(2)
    assert live(host.builder.build_all(replace(announced, bucket=None))) == [8, 2, 2]


@pytest.mark.parametrize("padding", ["dummy", "repeat"])
@pytest.mark.parametrize("layout", ["tokens", "requests"])
@pytest.mark.parametrize("bucket", [8, None])
def test_a_larger_graph_than_the_staged_one_leaves_nothing(
    make_host: Make, padding: str, layout: str, bucket: int | None
) -> None:
    """Starts of bucket 16 stayed beyond a batch of bucket 8, since no build sees a replay."""
    host, fresh = (make_host(padding=padding, layout=layout) for _ in range(2))
    graphs = {}
    for size in (16, 8):
        host.builder.stage_idle(size)
        host.builder.refresh(size)
        graphs[size] = graph.capture(partial(host.builder.refresh, size), device="cpu")
    small = host.batch([4, 4], [33, 200], [1, 2], bucket=bucket)
    for _ in range(2):
        host.builder.stage(replace(small, bucket=8))
        graphs[16].replay()
    if bucket is None:
        host.builder.build_all(small)
    else:
        host.builder.stage(small)
        graphs[bucket].replay()
    fresh.builder.build_all(small)
    for key in host.builder._active().buffers.words.plan.fields:
        used, clean = (made.builder._active().buffers.words.view(key) for made in (host, fresh))
        assert used.tolist() == clean.tolist(), key
    assert all(map(torch.equal, words(host), words(fresh)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("warmup", [0, 1])
def test_a_device_capture_after_serving_writes_no_live_slot(make_host: Make, warmup: int) -> None:
    """On a device the capture itself runs nothing, and its warm-up run stages the idle batch."""
    host = make_host(device="cuda:0")
    host.builder.build_all(host.batch([4] * 3, [100, 57, 9], [0, 3, 1], bucket=16))
    slots = torch.zeros(3, dtype=torch.int32, device="cuda:0")

    def draft() -> None:
        for index, step in enumerate(host.builder.refresh(16)):
            slots[index] += step.groups["draft0"].slot_mapping.ge(0).sum()

    if warmup == 0:
        host.builder.stage_idle(16)
        host.builder.refresh(16)
    captured = graph.capture(draft, device="cuda:0", warmup=warmup)
    assert slots.tolist() == [0, 0, 0]
    host.builder.stage(host.batch([4, 4], [33, 200], [1, 2], bucket=16))
    captured.replay()
    assert slots.tolist() == [8, 2, 2]
