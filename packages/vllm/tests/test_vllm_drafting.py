"""How the runners' marks of unfinished prompts reach our builders. Needs no vLLM."""

from types import SimpleNamespace
from typing import Any

import torch

from dsacp.vllm.aside import Engine
from dsacp.vllm.drafting import DraftMask, find_mark

DEVICE = torch.device("cpu")


class Speculator:
    """What is read and wrapped of V2's speculator."""

    def __init__(self, builders: list[Any]) -> None:
        self.max_num_reqs, self.device = 4, DEVICE
        self.builders, self.proposed = builders, 0
        self.attn_groups: list[Any] = []

    def set_attn(self, groups: int) -> int:
        self.attn_groups = [[SimpleNamespace(metadata_builders=self.builders)]]
        return groups

    def propose(self, input_batch: str, num_sampled: torch.Tensor, dummy_run: bool = False) -> str:
        self.proposed += 1
        return f"{input_batch} {num_sampled.numel()} {dummy_run}"


def test_v1_keeps_its_mark_where_it_is() -> None:
    engine, mask = Engine(), torch.tensor([False, True])
    find_mark(SimpleNamespace(discard_request_mask=SimpleNamespace(gpu=mask)), engine)
    assert engine.unfinished is mask
    find_mark(SimpleNamespace(), other := Engine())
    assert other.unfinished is None


def test_v2_marks_requests_that_sampled_nothing_before_it_proposes() -> None:
    later, foreign = SimpleNamespace(drafts_later=False), SimpleNamespace()
    speculator, engine = Speculator([later, foreign]), Engine()
    find_mark(SimpleNamespace(speculator=speculator), engine)
    assert speculator.set_attn(3) == 3
    assert later.drafts_later
    assert not hasattr(foreign, "drafts_later")
    address = engine.unfinished.data_ptr()
    for sampled in ([1, 0, 4], [1, 1]):
        counts = torch.tensor(sampled, dtype=torch.int32)
        assert speculator.propose("batch", counts, dummy_run=True).endswith("True")
        assert speculator.propose("batch", num_sampled=counts).endswith("False")
        marked = [count == 0 for count in sampled]
        assert engine.unfinished.tolist()[: len(sampled)] == marked
    assert engine.unfinished.data_ptr() == address, "a graph holds it"
    assert speculator.proposed == 4


def test_a_mask_keeps_its_address_and_covers_every_row() -> None:
    mask = DraftMask(5, DEVICE)
    assert mask.of(None, 3) is None
    words = mask.of(torch.tensor([False, True, False]), 4)
    assert words is not None
    assert words.tolist() == [1, 0, 1, 1, 1], "padding past the framework's rows is no chunk"
    again = mask.of(torch.tensor([True, False, False]), 2)
    assert again is not None
    assert again.data_ptr() == words.data_ptr()
    assert again.tolist()[:2] == [0, 1]
    assert again.dtype == torch.int32
