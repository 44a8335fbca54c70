"""The compressor's rows, as upstream's own attention class asks for them from either metadata."""

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ascend_double import HostDouble, install
from ascend_double.batches import BLOCK, common_metadata, draw
from ascend_double.compare import TOTALS
from ascend_double.host import ROPE_DIM
from ascend_double.ops import CALLS, NAMES
from ascend_double.scenario import stock

from dsacp.kernels import compressor_row_count
from dsacp.vllm.ascend.plugin import choose

BATCHES = 40


@pytest.fixture
def attention(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return upstream's attention class with a forward context of its own for every call."""
    modules = install()
    monkeypatch.setattr(
        modules.dsa_v1,
        "get_forward_context",
        lambda: SimpleNamespace(additional_kwargs={}),
    )
    return modules.dsa_cp.AscendDSACPImpl


def rows_of(attention: Any, metadata: Any, ratio: int) -> tuple[dict[str, Any], Any]:
    """Let upstream launch the op for a step's metadata; returns its arguments and answer."""
    own = attention.__new__(attention)
    own.compress_ratio = ratio
    CALLS.clear()
    answer = own._compute_compressor_metadata(metadata.req_metadata)
    ((name, arguments),) = CALLS
    assert name == NAMES[3]
    return arguments, answer


@pytest.mark.parametrize("ratio", [4, 128])
@pytest.mark.parametrize(("tp", "rank"), [(1, 0), (4, 1)])
def test_rows_are_equal(attention: Any, ratio: int, tp: int, rank: int) -> None:
    """Real schema, arguments equal on every request that is not padding, answers equal."""
    host = HostDouble(3, tp, rank, max_num_seqs=64, max_num_batched_tokens=144)
    rng = random.Random(10 * ratio + tp)
    pair = [host.builder(cls, ratio) for cls in (stock(), choose(stock()))]
    written = 0
    for _ in range(BATCHES):
        batch, seed = draw(rng, host), rng.randrange(1 << 30)
        found = []
        for builder in pair:
            common = common_metadata(batch, host, random.Random(seed))
            step = builder.build(
                0,
                common,
                num_reqs_actual=batch.real,
                common_ratio_to_sas_metadata={},
                block_size=BLOCK,
            )
            found.append(rows_of(attention, step, ratio))
        (left, upstream), (right, ours) = found
        assert left.keys() == right.keys()
        for key, value in left.items():
            if key == "start_pos":
                assert torch.equal(value[: batch.real], right[key][: batch.real])
            elif isinstance(value, torch.Tensor):
                assert torch.equal(value, right[key]), key
            else:
                assert value == right[key], key
        count = compressor_row_count(sum(batch.lengths), batch.rows, ratio)
        assert ours[0].shape == (count, 1, 1, ROPE_DIM)
        for one, other in zip(upstream, ours, strict=True):
            assert torch.equal(one, other)
        written += int((ours[2][:, 0] >= 0).sum())
        TOTALS["compressor calls"] += 1
    assert written > 0
