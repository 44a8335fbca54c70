"""Graphs, tapes and guards keep addresses, and are not copied."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dsacp.core import AliasError
from dsacp.graph import CpuBackend, CpuTape, GraphGuard, StreamBackend, capture


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_graphs_and_guards_are_not_copied(how: Callable[[Any], Any]) -> None:
    """Releasing a graph's copy freed the original's work; a deep copy replays on old addresses."""
    source, out = torch.ones(3), torch.zeros(3)
    graph = capture(lambda: out.copy_(source), device="cpu")
    stream = object.__new__(StreamBackend)
    for owner in (graph, CpuBackend(), CpuTape(), GraphGuard([], []), stream):
        with pytest.raises(AliasError, match="expected one owner of the addresses"):
            how(owner)
    source.fill_(7)
    graph.replay()
    assert out.tolist() == [7.0] * 3
