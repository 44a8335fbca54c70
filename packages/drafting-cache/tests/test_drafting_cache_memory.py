"""What a shape that was seen once costs for as long as the builder lives."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

Make = Callable[..., Any]


def live_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects())


@pytest.mark.parametrize("tp", [(3, 1), (8, 5)])
@pytest.mark.parametrize("kind", ["draft", "target"])
def test_shapes_share_their_views(
    make_host: Make, target_specs: Make, kind: str, tp: tuple[int, int]
) -> None:
    """Every shape kept views of everything, 50 KiB: 1,024 of them a builder came to gigabytes."""
    options = {"groups": target_specs(), "num_steps": 1} if kind == "target" else {}
    host = make_host(tp=tp, capture_sizes=(), **options)

    def build(count: int) -> None:
        for longest in range(1, 40):
            host.builder.build_all(host.batch([1] * (count - 1) + [longest], [50] * count))

    build(6)
    build(5)
    before = live_tensors()
    build(4)
    build(3)
    spent = live_tensors() - before
    assert spent <= 39 * 2 * 3, f"{spent / 78:.1f} tensors a shape"


def test_released_views_free_their_storage(make_host: Make) -> None:
    """Views that are shared must not outlive the release, which sleep mode waits for."""
    host = make_host()
    host.builder.build_all(host.batch([4], [9]))
    before = sum(storage.nbytes for storage in host.builder.storages())
    gc.collect()
    gc.disable()
    try:
        words = live_words()
        host.builder.release()
        assert words - live_words() >= before // 4
    finally:
        gc.enable()


def live_words() -> int:
    """Words of all storages that any tensor still holds, each counted once."""
    found = {}
    for item in gc.get_objects():
        if issubclass(type(item), torch.Tensor):
            found[item.untyped_storage().data_ptr()] = item.untyped_storage().nbytes()
    return sum(found.values()) // 4
