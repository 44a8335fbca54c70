"""Every batch that a configuration allows is served inside its buffers."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from ascend_double import HostDouble
from ascend_double.batches import Batch
from ascend_double.scenario import run, stock

from dsacp.core import LayoutError, TokenShard, round_up
from dsacp.graph import GraphGuard
from dsacp.kernels import rope_gather
from dsacp.vllm.ascend.banks import Bank, BankSize
from dsacp.vllm.ascend.fill import fill_tokens
from dsacp.vllm.ascend.one_token import fill_one_token, lengths_of_positions
from dsacp.vllm.ascend.plugin import choose
from dsacp.vllm.ascend.shapes import Shape

DRAFTS = 3
SAMPLED = ((1, 4), (2, 8), (6, 4), (12, 16), (17, 5))
"""(max_num_seqs, tp): fewer requests than ranks, and requests whose padding passes them."""
WIDTHS = {"narrow": 32, "wide": 64}


def hosts(seqs: int, tp: int) -> Iterator[HostDouble]:
    """Yield configurations without captures, with some below and with some above tp."""
    query_len = DRAFTS + 1
    below = max(query_len, tp // 2 // query_len * query_len)
    for sizes in ((), (below,), (query_len * seqs, 2 * query_len * seqs)):
        yield HostDouble(DRAFTS, tp, tp - 1, seqs, query_len * seqs, sizes)


def batches(host: HostDouble, counts: tuple[int, ...]) -> Iterator[Batch]:
    """Yield uniform, replayed and one-token batches of every count of requests."""
    query_len = host.drafts + 1
    for count in counts:
        sizes = [size for size in host.capture_sizes if size >= count * query_len]
        shapes = [("verify", query_len, count * query_len), ("decode", 1, count)]
        shapes += [("graph", query_len, size) for size in sizes[:1]]
        for kind, length, tokens in shapes:
            rows = tokens // query_len if kind == "graph" else count
            contexts = tuple(range(100, 100 + count))
            nothing = (0,) * count
            yield Batch(kind, (length,) * count, contexts, tokens, rows, (False,) * count, nothing)


def serve_all(seqs: int, tp: int, counts: tuple[int, ...]) -> int:
    """Serve every batch of a configuration's extremes; returns how many were served."""
    served = 0
    for host in hosts(seqs, tp):
        builder = host.builder(choose(stock()))
        assert builder.dsacp_refused is None
        for batch in batches(host, counts):
            run(builder, host, batch)
            served += 1
        GraphGuard(builder.dsacp_regions(), builder.dsacp_storages()).check()
    return served


def test_every_batch_is_served(record_property: Any) -> None:
    """Draft steps were refused where requests rounded up to tp pass max_num_seqs + 1.

    That was another builder's fault; this one's later banks are larger, and its sweep says so.
    """
    counts = [serve_all(seqs, tp, tuple({1, seqs})) for seqs, tp in SAMPLED]
    record_property("batches served, none refused", sum(counts))
    assert all(counts)


@pytest.mark.slow
@pytest.mark.parametrize("tp", range(1, 17))
def test_every_batch_of_every_size_is_served(tp: int, record_property: Any) -> None:
    served = sum(serve_all(seqs, tp, tuple(range(1, seqs + 1))) for seqs in range(1, 18))
    record_property("batches served, none refused", served)


def bank(one_token: bool, reverse: bool = False) -> Bank:
    """Return a bank of 16 rows whose RoPE configurations have widths and lengths of their own."""
    generator = torch.Generator().manual_seed(0)
    tables = {
        name: (
            torch.rand(2 * width, width, generator=generator),
            torch.rand(2 * width, width, generator=generator),
        )
        for name, width in WIDTHS.items()
    }
    for cos, sin in tables.values():
        cos[0], sin[0] = 1.0, 0.0  # as every table has it: padding stands at position 0
    order = dict(reversed(tables.items())) if reverse else tables
    size = BankSize(16, 16, 2, table_width=8 if one_token else 0)
    return Bank("group", 2, size, order, torch.device("cpu"))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("one_token", [False, True])
def test_every_rope_configuration_has_its_own_width(one_token: bool, reverse: bool) -> None:
    """Tails of a step were cleaned with configuration 0's width: over guard words, or too short."""
    found, positions = bank(one_token, reverse), torch.arange(40, 56)
    for count in (16, 5):
        shape = Shape(count, count, count, count, TokenShard(count, 4, 1))
        if one_token:
            fill_one_token(found, shape, *lengths_of_positions(found, shape, positions), 128)
        else:
            fill_tokens(found, shape, positions, positions, 128, _pairs)
        GraphGuard(found.regions(), found.storages()).check()
    padded = round_up(5, 4)
    for key, (cos, sin) in found.rope_rows.items():
        expected = torch.ones(padded, WIDTHS[key]), torch.zeros(padded, WIDTHS[key])
        rope_gather(positions[:5].int(), *found.tables[key], expected[0][:5], expected[1][:5])
        assert torch.equal(cos[:padded], expected[0])
        assert torch.equal(sin[:padded], expected[1])


def _pairs(slots: torch.Tensor, block_size: int) -> torch.Tensor:
    return torch.stack([slots // block_size, slots % block_size], dim=1)


@pytest.mark.parametrize("shape", [(16, 40), (3,), ()])
def test_positions_of_another_shape_touch_no_buffer(shape: tuple[int, ...]) -> None:
    """``out=`` resized the lengths' view: two-dimensional positions wrote over the fields behind.

    Too few of them left the lengths of an earlier batch on rows that are real.
    """
    found, step = bank(one_token=True), Shape(16, 16, 16, 16, TokenShard(16, 4, 0))
    before = [storage.clone() for storage in found.storages()]
    with pytest.raises(LayoutError, match=r"expected positions \[>= 16\].*found \["):
        lengths_of_positions(found, step, torch.full(shape, 7))
    GraphGuard(found.regions(), found.storages()).check()
    assert all(torch.equal(*pair) for pair in zip(before, found.storages(), strict=True))
