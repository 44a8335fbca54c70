"""Foreign tensors that are gone at replay, constants, and what a tape refuses."""

import gc

import pytest
import torch

from dsacp.core import LayoutError, StaleAddressError
from dsacp.graph import CpuTape


def test_tape_does_not_keep_foreign_tensors_alive_and_reports_every_one() -> None:
    out = torch.zeros(2, 3)
    first, second, kept = torch.ones(3), torch.ones(3, dtype=torch.int32), torch.ones(3)
    with CpuTape(lambda address: "kept" if address == kept.data_ptr() else None) as tape:
        out[0].copy_(first * kept)
        out[1].copy_(kept + 1)
        out[0].add_(out[1][second.long() - 1])
    del first, second
    gc.collect()
    kept.fill_(5)
    with pytest.raises(StaleAddressError, match=r"2 gone") as caught:
        tape.replay()
    assert "float32 [3]" in str(caught.value)
    assert "int32 [3]" in str(caught.value)
    assert bool(out[0].isnan().all()), "the stand-in is poison"
    assert out[1].tolist() == [6.0] * 3, "the replay went on to its end"


def test_storage_that_moved_is_stale() -> None:
    source, out = torch.ones(3), torch.zeros(3)
    with CpuTape() as tape:
        out.copy_(source)
    source.untyped_storage().resize_(1 << 20)
    with pytest.raises(StaleAddressError, match="moved to 0x"):
        tape.replay()


def test_memory_reused_by_another_tensor_is_stale() -> None:
    out = torch.zeros(4)
    source = torch.ones(4)
    with CpuTape() as tape:
        out.copy_(source)
    del source
    reuse = [torch.full((4,), 2.0) for _ in range(64)]
    with pytest.raises(StaleAddressError):
        tape.replay()
    assert len(reuse) == 64


def test_host_data_made_on_the_tape_is_a_constant() -> None:
    out = torch.zeros(2)
    with CpuTape() as tape:
        out.add_(torch.tensor([1.0, 2.0]))
    gc.collect()
    tape.replay()
    assert out.tolist() == [2.0, 4.0]


def test_unseen_host_data_is_stale_at_replay() -> None:
    """No mode sees ``frombuffer``, but its storage is foreign and gone at replay."""
    out = torch.zeros(2)
    with CpuTape() as tape:
        out.add_(torch.frombuffer(bytearray(8), dtype=torch.float32))
    with pytest.raises(StaleAddressError, match="aten::add_"):
        tape.replay()


def test_views_cost_nothing_and_ops_are_counted() -> None:
    x = torch.zeros(4)
    with CpuTape() as tape:
        x.view(2, 2)[0].add_(1)
        x.detach().t()
    assert tape.num_ops == 1


def test_tape_records_once_and_never_replays_inside_a_capture() -> None:
    x = torch.zeros(1)
    with CpuTape() as tape:
        x.add_(1)
    with pytest.raises(LayoutError, match="already recorded"), tape:
        pass
    with CpuTape(), pytest.raises(LayoutError, match="capture in progress"):
        tape.replay()


def test_sparse_tensors_are_refused() -> None:
    sparse = torch.eye(3).to_sparse()
    with pytest.raises(LayoutError, match="strided"), CpuTape():
        torch.sparse.sum(sparse)
