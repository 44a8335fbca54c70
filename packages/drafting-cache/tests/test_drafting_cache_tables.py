"""Every field of a step has the step's rows, whatever table the framework has."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
import torch

from dsacp.core import LayoutError
from dsacp.drafting_cache import BoundInputs, GroupMetadata, StepMetadata
from dsacp.sas_metadata import SasSpec, plan_sas

SPEC = SasSpec(num_heads=64, num_cores=4)
Make = Callable[..., Any]
ROW_FIELDS = ("seq_lens", "local_seq_lens", "start_pos", "block_table")
START_FIELDS = ("query_start_loc", "local_query_start_loc")


def rebind(host: Any, rows: int, **options: Any) -> None:
    """Bind tables of another number of rows, as frameworks size them."""
    host.builder.release()
    host.builder.restore()
    tables = {name: table[:rows].contiguous() for name, table in host.tables.items()}
    host.builder.bind(tables, **options)


def leading(group: GroupMetadata) -> Iterator[int]:
    """The rows that each field of a group stands for."""
    for field in ROW_FIELDS:
        yield getattr(group, field).shape[0]
    for field in START_FIELDS:
        yield getattr(group, field).shape[0] - 1


def check_rows(step: StepMetadata) -> None:
    for group in step.groups.values():
        assert set(leading(group)) == {step.num_reqs}
        assert group.positions.shape[0] == step.shard.padded
        if group.compressor is not None:
            assert int(group.compressor.requests.max()) < step.num_reqs


@pytest.mark.parametrize("layout", ["tokens", "requests"])
@pytest.mark.parametrize("rows", [6, 7, 17, None])
@pytest.mark.parametrize("padding", ["repeat", "dummy"])
def test_fields_of_a_step_agree_on_their_rows(
    make_host: Make, padding: str, rows: int | None, layout: str
) -> None:
    """A table of max_num_seqs=6 rows stood beside lengths of 8 rows, 16 in a bucket."""
    host = make_host(padding=padding, layout=layout)
    capacity = host.builder.config.capacity
    if padding == "dummy" and (rows or capacity.max_reqs) < capacity.max_reqs:
        with pytest.raises(LayoutError, match=f"at least 17 rows, found {rows}.*max_reqs"):
            rebind(host, rows)
        return
    rebind(host, rows or capacity.max_reqs)
    for count, bucket in product(range(7), (None, 8, 16)):
        if bucket is None or 0 < 4 * count <= bucket:
            for step in host.builder.build_all(host.batch([4] * count, [50] * count, None, bucket)):
                check_rows(step)
    for index, count in product(range(3), range(1, 7)):
        check_rows(host.builder.build_for_drafting(host.batch([1] * count, [50] * count), index))
    host.builder.warmup()


@pytest.mark.parametrize("rows", [6, 17])
def test_rows_that_a_table_lacks_were_padding(make_host: Make, rows: int) -> None:
    """What a short table leaves out of a step is inert, and plans are for the rows left."""
    whole, short = (make_host(padding="repeat") for _ in range(2))
    rebind(short, rows)
    for queries in ([4] * 6, [4] * 3, [1, 9, 2], [1] * 6):
        left, right = (
            host.builder.build_all(host.batch(queries, [60] * len(queries)))
            for host in (whole, short)
        )
        for one, other in zip(left, right, strict=True):
            ours, theirs = one.groups["draft0"], other.groups["draft0"]
            plan = plan_sas(SPEC, theirs.local_query_start_loc, theirs.local_seq_lens)
            assert torch.equal(plan, theirs.sas_metadata), "planned for other rows than shown"
            assert torch.equal(ours.slot_mapping, theirs.slot_mapping)
            assert torch.equal(ours.seq_lens[: other.num_reqs], theirs.seq_lens)
            assert ours.seq_lens[other.num_reqs :].eq(0).all()


@pytest.mark.parametrize("padding", ["repeat", "dummy"])
def test_a_short_table_is_refused_before_a_compressor_runs(
    make_host: Make, target_specs: Make, padding: str
) -> None:
    """A dummy request without a row was refused by the compressor, 72 words after the first."""
    host = make_host(groups=target_specs(), num_steps=1, padding=padding)
    before = [storage.clone() for storage in host.builder.storages()]
    if padding == "dummy":
        with pytest.raises(LayoutError, match="at least 17 rows, found 6"):
            rebind(host, 6)
        for storage, old in zip(host.builder.storages(), before, strict=True):
            assert torch.equal(storage.view(torch.int32), old.view(torch.int32))
        return
    rebind(host, 3)
    for bucket in (16, None):
        check_rows(host.builder.build(host.batch([4] * 3, [50] * 3, bucket=bucket)))
        check_rows(host.builder.build(host.batch([4], [50], bucket=None)))


@pytest.mark.parametrize("name", ["query_start_loc", "seq_lens", "num_rejected", "num_reqs"])
def test_bound_inputs_are_flat(make_host: Make, name: str) -> None:
    """Bound tensors of two dimensions were taken, and the first build failed after it had begun."""
    sizes = {"query_start_loc": 18, "seq_lens": 17, "num_rejected": 17, "num_reqs": 1}
    inputs = {key: torch.zeros(size, dtype=torch.int32) for key, size in sizes.items()}
    inputs[name] = inputs[name][None]
    host = make_host()
    with pytest.raises(LayoutError, match=f"bound {name} as contiguous 1-D int32"):
        rebind(host, 17, inputs=BoundInputs(**inputs))
