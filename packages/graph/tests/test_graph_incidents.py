"""Incidents that users reported, replayed on the tape: each kind must fail loudly or be right."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from dsacp.core import StaleAddressError
from dsacp.graph import Graph, GraphGuard, capture

Make = Callable[..., Any]


def read_lens(step: object, out: Tensor) -> None:
    """A draft step: its output depends on lengths and slots of both groups."""
    for group in step.groups.values():
        out.add_(group.seq_lens * 3 + group.slot_mapping)


def capture_reader(metadata: object, out: Tensor, guard: GraphGuard | None = None) -> Graph[None]:
    def run() -> None:
        out.zero_()
        read_lens(metadata, out)

    return capture(run, device="cpu", guard=guard, warmup=0)


def test_addresses_are_stable_while_values_change(toy: Any) -> None:
    """vllm-ascend #12599: the builder returned clones; a replay read freed memory."""
    guard = toy.guard()
    toy.stage([5, 9, 2])
    first = toy.refresh()
    guard.watch(first)
    before = first[1].groups["swa"].seq_lens.tolist()
    junk = [torch.empty(64) for _ in range(100)]
    toy.stage([70, 3])
    guard.check(toy.refresh())
    assert first[1].groups["swa"].seq_lens.tolist() == [71, 4, 0, 0, 0] != before
    assert len(junk) == 100


def test_clone_in_new_metadata_is_named(toy: Any) -> None:
    """vllm-ascend #12599: one field of one step is a clone."""
    guard = toy.guard()
    toy.stage([5, 9])
    guard.watch(toy.refresh())
    built = toy.refresh()
    group = built[2].groups["tail"]
    object.__setattr__(group, "seq_lens", group.seq_lens.clone())
    with pytest.raises(StaleAddressError, match=r"\[2\].groups\['tail'\].seq_lens .tail/step2/"):
        guard.check(built)


def test_release_lets_go_of_the_output() -> None:
    """Whoever kept the released graph kept its output, and with it the memory of the pool."""
    graph = capture(lambda: torch.ones(3) + 1, device="cpu")
    kept = weakref.ref(graph.output)
    graph.release()
    gc.collect()
    assert kept() is None
    assert not hasattr(graph, "output")
    graph.release()


def test_captured_clone_fails_on_replay(toy: Any) -> None:
    """vllm-ascend #12599: a graph captured a clone that nobody keeps."""
    toy.stage([5, 9])
    toy.refresh()
    out = torch.zeros(5, dtype=torch.int32)
    clone = toy.field("swa", 1, "seq_lens").clone()
    graph = capture(lambda clone=clone: out.copy_(clone), device="cpu")
    del clone
    graph.output = None
    gc.collect()
    with pytest.raises(StaleAddressError, match=r"int32 \[5\].*freed"):
        graph.replay()
    assert out.tolist() == [-1] * 5, "poison, not the captured values"


def test_a_kept_clone_replays_old_values(toy: Any) -> None:
    """vllm-ascend #15160: holding the captured temporary alone replays stale data.

    The addresses are fine, so only values can tell: the graph must differ from eager.
    """
    toy.stage([5, 9])
    metadata = toy.refresh()[1]
    kept = toy.field("swa", 1, "seq_lens").clone()
    stale, right = torch.zeros(5, dtype=torch.int32), torch.zeros(5, dtype=torch.int32)
    graph = capture(lambda: stale.copy_(kept), device="cpu")
    good = capture(lambda: right.copy_(metadata.groups["swa"].seq_lens), device="cpu")
    toy.stage([50, 90])
    toy.refresh()
    graph.replay()
    good.replay()
    assert right.tolist() == [51, 91, 0, 0, 0]
    assert stale.tolist() != right.tolist()


def test_generation_refuses_an_older_graph(toy: Any) -> None:
    """vLLM #55013: after sleep level 2 the buffers were freed and made again."""
    guard = toy.guard()
    out = torch.zeros(5, dtype=torch.int32)
    metadata = toy.refresh()
    guard.watch(metadata)
    graph = capture_reader(metadata[0], out, guard)
    graph.replay(check=True)
    del metadata
    toy.allocate()
    gc.collect()
    with pytest.raises(StaleAddressError, match="generation 1.*generation 2"):
        graph.replay()
    with pytest.raises(StaleAddressError, match="freed"):
        guard.check()


def test_old_views_are_detected_after_release(toy: Any) -> None:
    """vLLM #55013: without a generation the tape itself finds the freed arena."""
    out = torch.zeros(5, dtype=torch.int32)
    graph = capture_reader(toy.refresh()[0], out)
    toy.allocate()
    gc.collect()
    with pytest.raises(StaleAddressError, match="1 gone"):
        graph.replay()
