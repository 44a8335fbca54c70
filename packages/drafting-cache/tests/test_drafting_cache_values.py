"""What the host can know of a batch is compared before anything is written."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from dsacp.core import DsacpError, LayoutError, StaleAddressError
from dsacp.drafting_cache import BoundInputs, DraftBatch
from dsacp.drafting_cache.values import CHEAP_REQUESTS

Make = Callable[..., Any]


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def words(host: Any) -> list[torch.Tensor]:
    return [storage.view(torch.int32).clone() for storage in host.builder.storages()]


def refused(host: Any, batch: DraftBatch, error: type[DsacpError], text: str) -> None:
    """Through every entry point, without a write."""
    before = words(host)
    for entry in (host.builder.build, host.builder.build_all, host.builder.stage):
        with pytest.raises(error, match=text):
            entry(batch)
    assert all(map(torch.equal, words(host), before))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"num_reqs": 1.5}, "num_reqs >= 0 as a whole number, found 1.5"),
        ({"num_reqs": True}, "num_reqs >= 0 as a whole number, found True"),
        ({"num_reqs": -1}, "num_reqs >= 0 as a whole number, found -1"),
        ({"num_tokens": -1}, "num_tokens >= 0 as a whole number, found -1"),
        ({"num_tokens": 8.0}, "num_tokens >= 0 as a whole number, found 8.0"),
        ({"num_tokens_padded": 16.0}, "num_tokens_padded >= 0 as a whole number, found 16.0"),
        ({"num_reqs_padded": -3}, "num_reqs_padded >= 0 as a whole number, found -3"),
        ({"bucket": True}, "bucket >= 0 as a whole number, found True"),
        ({"num_tokens": 4}, "from 0 to num_tokens=4 over 2 requests, found 0 to 8"),
        ({"num_tokens": 10}, "from 0 to num_tokens=10 over 2 requests, found 0 to 8"),
        ({"num_tokens": 0, "bucket": 8}, r"kind uniform\(4\)"),
        ({"query_start_loc": int32(1, 4, 8)}, "found 1 to 8"),
        ({"query_start_loc": int32(0, 9, 8)}, "never falls, found 9 and then 8 at request 1"),
        ({"seq_lens": int32(20, -1)}, "seq_lens >= 0, found -1 of request 1"),
        ({"query_start_loc": int32(0, 4, 8)[None]}, r"1-D int32 .*found torch.int32 \(1, 3\)"),
        ({"seq_lens": int32(20, 30)[None]}, r"1-D int32 .*found torch.int32 \(1, 2\)"),
        ({"seq_lens": [20, 30]}, "seq_lens as a tensor, found list"),
        ({"num_rejected": int32(0)}, "num_rejected of at least 2 entries, found 1"),
        ({"query_start_loc": None}, "expected query_start_loc in the batch, found None"),
        ({"seq_lens": None}, "expected seq_lens in the batch, found None"),
    ],
)
def test_a_batch_that_contradicts_itself_touches_no_buffer(
    make_host: Make, changes: dict[str, Any], text: str
) -> None:
    """10 announced tokens with starts that end at 12 gave 12 live slots; 1.5 was a TypeError."""
    host = make_host()
    host.builder.build_all(host.batch([4] * 4, [60] * 4, bucket=16))
    batch = DraftBatch(**{**vars(host.batch([4, 4], [20, 30])), **changes})
    refused(host, batch, LayoutError, text)


def test_long_tensors_are_read_under_debug_alone(
    make_host: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading 256 requests on every build would cost 20 us: debug does, and the variable too."""
    count = CHEAP_REQUESTS + 2
    options = {"max_num_seqs": count, "num_draft_tokens": 1, "capture_sizes": ()}
    plain, debug = make_host(**options), make_host(**options, debug=True)
    batch = replace(plain.batch([1] * count, [9] * count), num_tokens=count - 1)
    plain.builder.build_all(batch)
    refused(debug, batch, LayoutError, f"num_tokens={count - 1} .*found 0 to {count}")
    monkeypatch.setenv("DSACP_DEBUG", "1")
    refused(make_host(**options), batch, LayoutError, f"found 0 to {count}")
    monkeypatch.delenv("DSACP_DEBUG")
    refused(debug, batch, LayoutError, f"found 0 to {count}")


@pytest.fixture
def bound_host(make_host: Make) -> Callable[..., tuple[Any, BoundInputs]]:
    def make(**options: Any) -> tuple[Any, BoundInputs]:
        host = make_host(**options)
        rows = host.builder.config.capacity.max_reqs
        sizes = (rows + 1, rows, rows, 1)
        inputs = BoundInputs(*(torch.zeros(size, dtype=torch.int32) for size in sizes))
        inputs.query_start_loc[:3] = int32(0, 4, 8)
        inputs.seq_lens[:2] = int32(40, 17)
        inputs.num_reqs.fill_(2)
        host.builder.release()
        host.builder.restore()
        host.builder.bind(host.tables, inputs)
        return host, inputs

    return make


@pytest.mark.parametrize("name", ["query_start_loc", "seq_lens", "num_rejected"])
def test_other_tensors_than_the_bound_ones_are_refused(bound_host: Make, name: str) -> None:
    """With bound inputs the tensors of a batch were ignored without a word."""
    host, inputs = bound_host()
    batch = DraftBatch(2, 8, bucket=8)
    own = getattr(inputs, name)
    for given in (None, own, own[:3]):
        host.builder.build_all(replace(batch, **{name: given}))
    for given in (own.clone(), own[1:], own.tolist()):
        text = f"{name} of the batch as None or as bound"
        refused(host, replace(batch, **{name: given}), StaleAddressError, text)


def test_debug_compares_bound_inputs_too(bound_host: Make) -> None:
    """A framework's own count of another batch would choose the rows of a build."""
    host, inputs = bound_host(debug=True)
    host.builder.build_all(DraftBatch(2, 8))
    inputs.num_reqs.fill_(3)
    refused(host, DraftBatch(2, 8), LayoutError, r"bound num_reqs=2 .*found \[3\]")
    inputs.num_reqs.fill_(2)
    inputs.query_start_loc[2] = 7
    refused(host, DraftBatch(2, 8), LayoutError, "num_tokens=8 .*found 0 to 7")
