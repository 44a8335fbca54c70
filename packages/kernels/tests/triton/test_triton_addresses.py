"""No lane of a gather may point outside the launch's tensors, not even a masked one.

Triton-Ascend loads every lane and selects afterwards. Before this was known, `draft_steps` read up
to 110 kB past its block tables there, and attention followed absent pages wherever they pointed.
"""

import importlib.util
import os

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    pytest.skip("the module triton is not installed", allow_module_level=True)
if torch.cuda.is_available():
    pytest.skip("loads are watched in the interpreter", allow_module_level=True)
# Read when a kernel module is imported, hence before any launch of this process.
os.environ.setdefault("TRITON_INTERPRET", "1")

from attention_cases import batch_of
from draft_scenarios import BASE, SCENARIOS
from masked_loads import MaskedLoads

from dsacp.kernels import (
    compressor_rows,
    covered_rows,
    dspark_indices,
    plan_table,
    rope_gather,
    sas_plan,
    slot_mapping,
    sparse_attention,
)

POISON = 0x7FFFFFFF
WORD = {"dtype": torch.int32}


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch, is_npu: bool) -> MaskedLoads:
    if is_npu:
        pytest.skip("loads are watched in the interpreter")
    from triton.runtime import interpreter

    from dsacp.kernels.draft_steps import triton as draft_launcher

    watch = MaskedLoads()
    builder, executor = interpreter.InterpreterBuilder, interpreter.GridExecutor
    load, arguments, planned = (
        builder.create_masked_load,
        executor._init_args_hst,
        draft_launcher._planned,
    )

    def masked_load(self, ptrs, *args):
        watch.see(ptrs.data)
        return load(self, ptrs, *args)

    def launch(self, args, kwargs):
        found = arguments(self, args, kwargs)
        watch.know([*found[0], *found[1].values()])
        return found

    def read_by_address(tables, *args):
        watch.know(tables)
        return planned(tables, *args)

    monkeypatch.setattr(builder, "create_masked_load", masked_load)
    monkeypatch.setattr(executor, "_init_args_hst", launch)
    monkeypatch.setattr(draft_launcher, "_planned", read_by_address)
    return watch


def words(values) -> torch.Tensor:
    return torch.tensor(values, **WORD)


def check(watch: MaskedLoads) -> None:
    assert watch.gathers
    assert watch.outside == []


@pytest.mark.parametrize(
    "name",
    ["dummy_mixed", "past_table", "three_block_sizes", "two_rope_tables", "idle_no_rows"],
)
def test_draft_steps(loads: MaskedLoads, check_draft, name: str) -> None:
    check_draft("triton", SCENARIOS[name])
    assert loads.outside == []
    assert loads.gathers or name == "idle_no_rows"


def test_draft_steps_of_more_rows_than_a_chunk(loads: MaskedLoads, check_draft) -> None:
    """Every program read the ends of chunks that the batch does not have."""
    starts = list(range(301))
    lens = [20 + index for index in range(300)]
    check_draft(
        "triton", BASE, starts=starts, lens=lens, rejected=[0] * 300, rows=[300], tokens=[304]
    )
    check(loads)


@pytest.mark.parametrize("size", [16, 24])
def test_slot_mapping(loads: MaskedLoads, size: int) -> None:
    positions = words([0, 5, POISON, -1, 7 * size, size, 3])
    owners = words([0, 1, 0, 1, 1, -1, POISON])
    table = torch.arange(1, 13, **WORD).view(2, 6)
    slot_mapping(positions, owners, table, size, torch.empty(7, **WORD), impl="triton")
    check(loads)


@pytest.mark.parametrize("dim", [6, 8])
def test_rope_gather(loads: MaskedLoads, dim: int) -> None:
    tables = torch.rand(9, dim), torch.rand(9, dim)
    outs = torch.empty(5, dim), torch.empty(5, dim)
    rope_gather(words([8, -3, POISON, 2, 8]), *tables, *outs, impl="triton")
    check(loads)


@pytest.mark.parametrize("ratio", [3, 4])
@pytest.mark.parametrize("dim", [6, 8])
def test_compressor_rows(loads: MaskedLoads, ratio: int, dim: int) -> None:
    """The row behind the last group belongs to no request."""
    starts, first = words([0, 5, 9, 13]), words([3, 0, 4 * ratio * 5])
    tables = torch.rand(40, dim), torch.rand(40, dim)
    table = torch.arange(1, 7, **WORD).view(3, 2)
    options = {"ratio": ratio, "block_size": 4, "num_rows": 9, "impl": "triton"}
    compressor_rows(starts, first, table, *tables, **options)
    check(loads)


@pytest.mark.parametrize("rows", [0, 3])
def test_compressor_rows_of_empty_tensors(loads: MaskedLoads, rows: int) -> None:
    starts = torch.zeros(rows + 1, **WORD)
    table, rope = torch.ones(rows, 2, **WORD), torch.empty(0, 6)
    options = {"ratio": 4, "block_size": 4, "num_rows": 3, "impl": "triton"}
    found = compressor_rows(starts, torch.zeros(rows, **WORD), table, rope, rope, **options)
    assert found.requests.tolist() == [-1] * 3
    assert loads.outside == []


def test_covered_rows(loads: MaskedLoads) -> None:
    plan = torch.zeros(1024, **WORD)
    out = torch.empty(9, dtype=torch.bool)
    covered_rows(plan, words([1, 3, 4]), "a2", 64, 4, out=out, impl="triton")
    check(loads)


@pytest.mark.parametrize("size", [5, 16])
def test_dspark_indices(loads: MaskedLoads, size: int) -> None:
    starts, lens, table = words([0, 3, 6]), words([9, 200]), words([[1, 2], [3, 4]])
    options = {"window": 8, "num_draft_tokens": 3, "block_size": size, "num_tokens": 7}
    dspark_indices(starts, lens, table, **options, impl="triton")
    assert loads.outside == []


@pytest.mark.parametrize(("rows", "policy"), [(0, 0), (40, 0), (9, 1)])
def test_plans_in_pairs(loads: MaskedLoads, rows: int, policy: int) -> None:
    """Records of idle cores looked a request up that the batch does not have."""
    starts, lens = torch.arange(rows + 1, **WORD) * 3, torch.full((rows,), 900, **WORD)
    plan = plan_table([(0, 0, 0, rows, 0, 128, 1, 36, 127, 0, 4, 512, policy, -1, 0, 0)])
    expected, found = torch.empty(1024, **WORD), torch.empty(1024, **WORD)
    sas_plan(starts, lens, expected, plan, impl="reference")
    sas_plan(starts, lens, found, plan, impl="triton")
    assert found.tolist() == expected.tolist()
    assert loads.outside == []


def bad_page(batch):
    table = batch.block_table.clone()
    table[0, 6], table[0, 7] = POISON, -5
    return {"block_table": table}


def bad_index(batch):
    chosen = batch.cmp_indices.clone()
    chosen[0, 0, 1], chosen[1, 0, 0] = POISON, -9
    return {"cmp_indices": chosen}


def bad_slot(batch):
    slots = words([0, POISON, 1] * batch.q.shape[0]).view(-1, 1, 3)
    absent = dict.fromkeys(("cmp_kv", "cmp_block_table", "cmp_indices"))
    return {"ori_indices": slots, "cmp_ratio": 1, **absent, "kv": torch.zeros_like(batch.kv)}


@pytest.mark.parametrize(("spoil", "size"), [(bad_page, 3), (bad_index, 4), (bad_slot, 3)])
def test_sparse_attention(loads: MaskedLoads, spoil, size: int) -> None:
    """The contract says "absent keys", and Ascend dereferenced what they are named by."""
    sizes = {"block_size": size, "cmp_block_size": size}
    batch = batch_of([(2, 30), (1, 9)], dim=16, dtype=torch.float32, ratio=4, topk=3, **sizes)
    batch = batch.with_(**spoil(batch))
    expected = sparse_attention(*batch.args(), **batch.options(), impl="reference")
    found = sparse_attention(*batch.args(), **batch.options(), impl="triton")
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    check(loads)
