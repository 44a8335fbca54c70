"""Compares what both builders ask of the planning ops, argument by argument."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from ascend_double.compare import TOTALS
from ascend_double.ops import CALLS, NAMES

HOST_BOUNDS = {
    NAMES[0]: ("max_seqlen_q", "max_seqlen_kv"),
    NAMES[1]: ("max_seqlen_q", "max_seqlen_kv"),
    NAMES[2]: ("max_seqlen_q", "max_seqlen_k"),
}
"""The only arguments that may differ: upstream gives the rank's maxima, ours bounds that the host
knows without asking the device. The ops ignore both (upstream U2, U12)."""

Recorded = list[tuple[str, dict[str, Any]]]


@contextmanager
def recorded() -> Iterator[Recorded]:
    """Collect the calls of a block into the list that is given."""
    CALLS.clear()
    own: Recorded = []
    try:
        yield own
    finally:
        own.extend(CALLS)
        CALLS.clear()


def check_calls(upstream: Recorded, ours: Recorded) -> None:
    """Assert equal calls in equal order, and that a bound is never below the maximum."""
    assert [name for name, _ in upstream] == [name for name, _ in ours]
    for (name, left), (_, right) in zip(upstream, ours, strict=True):
        assert left.keys() == right.keys()
        for key, value in left.items():
            _argument(name, key, value, right[key])
            TOTALS["arguments of ops"] += 1
        TOTALS["calls of ops"] += 1


def _argument(name: str, key: str, left: Any, right: Any) -> None:
    where = f"{name}({key}): upstream {left}, ours {right}"
    if key in HOST_BOUNDS.get(name, ()):
        assert right >= left, where
    elif isinstance(left, Tensor):
        assert isinstance(right, Tensor), where
        assert (left.dtype, left.shape) == (right.dtype, right.shape), where
        assert left.tolist() == right.tolist(), where
    else:
        assert type(left) is type(right), where
        assert left == right, where
