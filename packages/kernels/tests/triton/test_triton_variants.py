"""How many variants of a kernel are compiled: a new batch, stride or address asks for none.

Launches are recorded, not run, on tensors of the CPU.
"""

import importlib.util
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    pytest.skip("the module triton is not installed", allow_module_level=True)
if not torch.cuda.is_available():
    # Read when a kernel module is imported, hence before any launch of this process.
    os.environ.setdefault("TRITON_INTERPRET", "1")

pytest.importorskip("triton.backends.nvidia.driver", reason="no CUDA back end in here")

from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime import jit
from triton.runtime.interpreter import InterpretedFunction

from dsacp.core import TokenShard
from dsacp.kernels import (
    DRAFT_FIELDS,
    CompressorRows,
    clear_tails,
    compressor_rows,
    covered_rows,
    draft_steps,
    dspark_indices,
    local_metadata,
    plan_table,
    rope_gather,
    sas_plan,
    slot_mapping,
    sparse_attention,
    stage_inputs,
)
from dsacp.kernels.draft_steps.numbers import StepNumbers
from dsacp.kernels.sas_plan.triton import launch_rows

WORD = {"dtype": torch.int32}
BATCHES = [(1, 0), (2, 1), (3, 2), (16, 3), (300, 0), (4096, 1), (16384, 3)]
"""Requests, and words by which every tensor is off its 16 bytes."""


class Recorder:
    """Keeps what would choose a compiled kernel: types, specialisations, constants, options."""

    def __init__(self) -> None:
        self.seen: set[tuple[Any, ...]] = set()
        self.launches = 0
        self._backend = make_backend(GPUTarget("cuda", 90, 32))

    def run(self, kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        del grid, warmup
        self.launches += 1
        if isinstance(kernel, InterpretedFunction):
            names = kernel.kwargs["do_not_specialize"]
            kernel = jit.JITFunction(kernel.fn, do_not_specialize=names)
        bind = jit.create_function_from_signature(kernel.signature, kernel.params, self._backend)
        _, specialization, options = bind(*args, **kwargs)
        self.seen.add((kernel.fn, tuple(specialization), tuple(options.items())))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()

    def run(kernel: Any, *args: Any, **kwargs: Any) -> None:
        made.run(kernel, *args, **kwargs)

    for kind in (InterpretedFunction, jit.JITFunction):
        monkeypatch.setattr(kind, "run", run)
    return made


def tensor(count: int, off: int, value: int = 1) -> torch.Tensor:
    return torch.full((count + 4,), value, **WORD)[off : off + count]


def table(rows: int, off: int) -> torch.Tensor:
    """A block table whose row stride is 1, odd, even or a multiple of 16."""
    width = (32, 1, 10, 33)[off]
    return torch.zeros(rows * width + 4, **WORD)[off : off + rows * width].view(rows, width)


def run_draft_steps(rows: int, off: int) -> None:
    arena = tensor(20 * rows + 40, off)
    steps = 1 + off
    draft_steps(
        torch.arange(rows + 5, **WORD)[off:][: rows + 1],
        *(tensor(rows, off), tensor(rows, off, 0), tensor(1, off)),
        [table(rows, off)],
        [torch.zeros(512 + off, 64)],
        [torch.zeros(512 + off, 64)],
        torch.zeros(5 + off, dtype=torch.int64)[off:],
        arena,
        torch.zeros(1, 8, len(DRAFT_FIELDS), **WORD),
        torch.zeros(64 * rows * 16 + 4)[off:],
        torch.zeros(1, 8, 2, **WORD),
        *([16 << off], [rows] * steps, [rows] * steps, off, 1 + off, off, 1 + off, 99 + off),
        *(False, False, True, "triton"),
    )


def run_clear_tails(rows: int, off: int) -> None:
    layout = torch.zeros(1 + off, 4, len(DRAFT_FIELDS), **WORD)
    rope = torch.zeros(1, 4, 2, **WORD)
    bank = torch.zeros(64 * rows + 4)[off:]
    bounds = ([0, off], [rows, rows], [off, 0], [rows, rows], [off, 1], [off, 1])
    clear_tails(tensor(rows + 9, off), layout, bank, rope, [64], off % 3, *bounds, "triton")


def run_plan_table(rows: int, off: int) -> None:
    row = (0, 0, 0, rows, 0, 64, 0, 4 + off, 127, 0, 1, 0, off % 2, -1, 0, 0)
    plans = torch.cat([torch.zeros(off, 16, **WORD), plan_table([row])])[off:]
    sas_plan(tensor(rows + 1, off), tensor(rows, off), tensor(1024, off), plans, impl="triton")


def run_plan_rows(rows: int, off: int) -> None:
    row = [0, 0, 0, rows, off % 2, 64, 1, 4 + 2 * off, off, 0, 1 << off, 0, 1, -1, 0, 0]
    launch_rows(tensor(rows + 1, off), tensor(rows, off), tensor(1024, off), [row])


def run_stage_inputs(rows: int, off: int) -> None:
    inputs = tensor(rows + 1, off), tensor(rows, off), tensor(rows, off)
    stage_inputs(*inputs, rows, tensor(3 * (rows + off) + 2, off), rows + off, "triton")


def run_slot_mapping(rows: int, off: int) -> None:
    out = tensor(rows, off)
    slot_mapping(tensor(rows, off), tensor(rows, off), table(rows, off), 16, out, impl="triton")


def run_local_metadata(rows: int, off: int) -> None:
    shard = TokenShard(rows, 1 + off, 0)
    local_metadata(tensor(rows + 1, off), tensor(rows, off), shard, impl="triton")


def run_rope_gather(rows: int, off: int) -> None:
    cos = torch.zeros(off + 9, 64)
    outs = [torch.zeros(rows + 1, 64)[off % 2 :][:rows] for _ in "cs"]
    rope_gather(tensor(rows, off), cos, cos, *outs, "triton")


KERNELS: dict[str, Callable[[int, int], None]] = {
    name.removeprefix("run_"): call for name, call in list(globals().items()) if name[:4] == "run_"
}


@pytest.mark.parametrize("name", KERNELS)
def test_any_batch_takes_one_variant(name: str, recorder: Recorder) -> None:
    """Up to 16,384 requests at any address: a variant a count would compile while serving."""
    for rows, off in BATCHES:
        KERNELS[name](rows, off)
    assert recorder.launches >= len(BATCHES)
    assert len(recorder.seen) == 1


def rows_outputs(count: int, off: int) -> CompressorRows:
    ropes = (torch.zeros(count, 64) for _ in "cs")
    return CompressorRows(*(tensor(count, off) for _ in "spr"), *ropes)


@pytest.mark.parametrize("name", ["covered", "dspark", "compressor", "attention"])
def test_strides_and_addresses_take_one_variant(name: str, recorder: Recorder) -> None:
    """These unroll over the requests: one variant a power of two, whatever the addresses."""
    for rows, off in [(9, 0), (12, 1), (16, 2), (16, 3)]:
        starts, lens, pages = tensor(rows + 1, off), tensor(rows, off), table(rows, off)
        if name == "covered":
            out = torch.zeros(rows + 4, dtype=torch.bool)[off:]
            covered_rows(tensor(1024, off), starts, "a2", 64, 8 + off, out=out, impl="triton")
        elif name == "dspark":
            options = {"window": 9, "num_draft_tokens": 4, "block_size": 16, "index_width": 128}
            dspark_indices(
                starts, lens, pages, out=tensor(128, off).view(1, 1, 128), impl="triton", **options
            )
        elif name == "attention":
            q, kv = torch.zeros(3 * 4 * 16).view(3, 4, 16), torch.zeros(5, 16, 1, 16)
            sinks = torch.zeros(4)
            sparse_attention(
                *(q, kv, pages, starts, lens, sinks), scale=1.0, window_left=off, impl="triton"
            )
        else:
            cos = torch.zeros(64, 64)
            compressor_rows(
                *(starts, lens, pages, cos, cos),
                ratio=4, block_size=16, out=rows_outputs(rows, off), impl="triton",
            )  # fmt: skip
    assert recorder.launches == 4
    assert len(recorder.seen) == 1


@pytest.mark.parametrize("rows", [8, 64, 256, 1024, 4096, 16384])
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("device", [None, 0], ids=["by-jit", "by-handle"])
def test_the_benchmark_s_steps_are_one_launch(
    rows: int, groups: int, device: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A counter of operators would count one for a call of many launches."""
    from dsacp.kernels.draft_steps import triton_plan

    monkeypatch.setattr(triton_plan, "launcher", lambda *_: print)
    plan = triton_plan.plan_launches.__wrapped__
    tokens = (4 * rows, rows, rows)
    numbers = StepNumbers(
        (128,) * groups, (rows,) * 3, tokens, 0, 8, 3, 4, 65536, False, False, True
    )
    shapes = (torch.Size([65536, 64]),)
    (launch,) = plan(numbers.pack(), 3, rows, shapes, device)
    assert (launch.first_group, launch.first_table) == (0, 0)
    numbers = StepNumbers((128,), (rows,) * 3, (4 * rows, rows, rows), 0, 8, 3, 4, 9, *[False] * 3)
    assert len(plan(numbers.pack(), 3, rows, shapes * 5, device)) == 2


def test_a_call_makes_the_launches_of_its_plan(recorder: Recorder) -> None:
    run_draft_steps(16, 2)
    assert recorder.launches == 1
