"""Ten faults of device code, seeded, and who catches each.

    TRITON_INTERPRET=1 python seeded_faults.py interpreter
    python seeded_faults.py linalg | hivm           # with dsacp-ascend-ir[compilers]
    python seeded_faults.py cuda                    # with torch and upstream's triton on a GPU

A kernel is right with ``MENDED`` and has the fault without. Each call is made in a process of its
own, and returns what the kernel wrote beside what it should have written.
"""

import contextlib
import multiprocessing
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

Outcome = tuple[torch.Tensor, torch.Tensor]
LIMIT_S = 300


@triton.jit
def index_not_clamped(table, indices, out, size, BLOCK: tl.constexpr, MENDED: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    index = tl.load(indices + lane)
    known = (index >= 0) & (index < size)
    if MENDED:
        index = tl.minimum(tl.maximum(index, 0), size - 1)
    value = tl.load(table + index, mask=known, other=-1)
    if MENDED:
        value = tl.where(known, value, -1)
    tl.store(out + lane, value)


def run_index_not_clamped(device: str, mended: bool) -> Outcome:
    """Absent entries are -1 and far past the table."""
    table = torch.arange(100, 140, dtype=torch.int32, device=device)
    indices = torch.tensor([3, -1, 39, 40, 0x7FFFFFF, 7, -900, 0], dtype=torch.int32, device=device)
    out = torch.zeros_like(indices)
    index_not_clamped[(1,)](table, indices, out, 40, BLOCK=8, MENDED=mended)
    return out, torch.tensor([103, -1, 139, -1, -1, 107, -1, 100], dtype=torch.int32)


@triton.jit
def two_programs_on_one_word(out, count, BLOCK: tl.constexpr, MENDED: tl.constexpr):
    program = tl.program_id(0)
    row = program * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + row, row + 1, mask=row < count)
    # the end of the list: every program writes one where its own rows end
    if MENDED:
        if program == tl.num_programs(0) - 1:
            tl.store(out + count, -1)
    else:
        tl.store(out + tl.minimum((program + 1) * BLOCK, count), -1)


def run_two_programs_on_one_word(device: str, mended: bool) -> Outcome:
    """In the order of programs each marker is overwritten in time."""
    out = torch.zeros(33, dtype=torch.int32, device=device)
    two_programs_on_one_word[(4,)](out, 32, BLOCK=8, MENDED=mended)
    return out, torch.tensor([*range(1, 33), -1], dtype=torch.int32)


@triton.jit
def int32_overflow(x, rows, out, stride, size, BLOCK: tl.constexpr, MENDED: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    row = tl.load(rows + lane)
    if MENDED:
        inside = row < size // stride
        at = tl.where(inside, row, 0) * stride
    else:
        at = row * stride
        inside = at < size
        at = tl.minimum(at, size - 1)
    value = tl.load(x + at, mask=inside, other=0)
    tl.store(out + lane, tl.where(inside, value, 0))


def run_int32_overflow(device: str, mended: bool) -> Outcome:
    """A product of 2.4e9 is negative, hence below every bound."""
    x = torch.arange(240, dtype=torch.int32, device=device) + 1
    rows = torch.tensor([0, 1, 2, 3, 40_000_000, 5, 1, 0], dtype=torch.int32, device=device)
    out = torch.zeros_like(rows)
    int32_overflow[(1,)](x, rows, out, 60, 240, BLOCK=8, MENDED=mended)
    return out, torch.tensor([1, 61, 121, 181, 0, 0, 61, 1], dtype=torch.int32)


@triton.jit
def wrong_stride(table, lens, out, stride, rows, BLOCK: tl.constexpr, MENDED: tl.constexpr):
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    length = tl.load(lens + row)
    step = stride if MENDED else stride + BLOCK
    value = tl.load(table + row * step + lane)
    # a row without entries counts for nothing, whatever was read
    tl.store(out + row, tl.sum(tl.where(lane < length, value, 0), 0))


def run_wrong_stride(device: str, mended: bool) -> Outcome:
    """Only rows without entries are read in the wrong place."""
    table = torch.arange(64, dtype=torch.int32, device=device).view(8, 8)
    lens = torch.tensor([8, 0, 0, 0, 0, 0, 0, 0], dtype=torch.int32, device=device)
    out = torch.full((8,), -1, dtype=torch.int32, device=device)
    wrong_stride[(8,)](table, lens, out, 8, 8, BLOCK=8, MENDED=mended)
    return out, torch.tensor([28, 0, 0, 0, 0, 0, 0, 0], dtype=torch.int32)


@triton.jit
def off_by_one_grid(out, count, BLOCK: tl.constexpr, MENDED: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if MENDED:
        tl.store(out + row, row, mask=row < count)
    else:
        tl.store(out + row, row)


def run_off_by_one_grid(device: str, mended: bool) -> Outcome:
    """The last program writes into what follows the tensor, which is another's."""
    home = torch.zeros(64, dtype=torch.int32, device=device)
    out = home[:32]
    off_by_one_grid[(32 // 8 + 1,)](out, 32, BLOCK=8, MENDED=mended)
    return out, torch.arange(32, dtype=torch.int32)


@triton.jit
def uninitialised(x, out, count, BLOCK: tl.constexpr, MENDED: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    if MENDED:
        value = tl.load(x + lane, mask=lane < count, other=0)
    else:
        value = tl.load(x + lane, mask=lane < count)
    tl.store(out, tl.sum(value, 0))


def run_uninitialised(device: str, mended: bool) -> Outcome:
    """A sum over lanes that nothing was loaded into."""
    x = torch.arange(10, dtype=torch.int32, device=device)
    out = torch.zeros(1, dtype=torch.int32, device=device)
    uninitialised[(1,)](x, out, 10, BLOCK=16, MENDED=mended)
    return out, torch.tensor([45], dtype=torch.int32)


@triton.jit
def misaligned(x, starts, out, BLOCK: tl.constexpr, MENDED: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    start = tl.load(starts)
    if not MENDED:
        start = tl.multiple_of(start, 16)
    tl.store(out + lane, tl.load(x + start + lane))


def run_misaligned(device: str, mended: bool) -> Outcome:
    """A promise about an address that does not hold."""
    x = torch.arange(1024, dtype=torch.int32, device=device)
    starts = torch.tensor([3], dtype=torch.int32, device=device)
    out = torch.zeros(512, dtype=torch.int32, device=device)
    misaligned[(1,)](x, starts, out, BLOCK=512, MENDED=mended)
    return out, torch.arange(3, 515, dtype=torch.int32)


@triton.jit
def negative_shift(bits, out, BLOCK: tl.constexpr, MENDED: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    amount = tl.load(bits + lane)
    if MENDED:
        value = tl.where(amount < 0, 0, 1 << tl.maximum(amount, 0))
    else:
        value = 1 << amount
    tl.store(out + lane, value)


def run_negative_shift(device: str, mended: bool) -> Outcome:
    """A shift by a negative amount means nothing; the author expects no bit."""
    bits = torch.tensor([0, 1, -1, 5, -32, 7, -5, 30], dtype=torch.int32, device=device)
    out = torch.full_like(bits, 9)
    negative_shift[(1,)](bits, out, BLOCK=8, MENDED=mended)
    return out, torch.tensor([1, 2, 0, 32, 0, 128, 0, 1 << 30], dtype=torch.int32)


@triton.jit
def missing_tail(x, out, count, BLOCK: tl.constexpr, MENDED: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + row, mask=row < count, other=0)
    tl.store(out + row, value, mask=row < count)


def run_missing_tail(device: str, mended: bool) -> Outcome:
    """The last, partial block has no program."""
    x = torch.arange(100, dtype=torch.int32, device=device) + 1
    out = torch.zeros_like(x)
    missing_tail[(triton.cdiv(100, 16) if mended else 100 // 16,)](
        x, out, 100, BLOCK=16, MENDED=mended
    )
    return out, torch.arange(1, 101, dtype=torch.int32)


@triton.jit
def reduction_order(x, out, BLOCK: tl.constexpr, MENDED: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    value = tl.load(x + lane)
    if MENDED:
        # what cancels is taken away before the rest is summed
        value = tl.where(value > 1e7, 0.0, tl.where(value < -1e7, 0.0, value))
    tl.store(out, tl.sum(value, 0))


def run_reduction_order(device: str, mended: bool) -> Outcome:
    """In the order of lanes the small numbers come first; in another, large ones swallow them."""
    x = torch.tensor([1.0] * 14 + [1e8, -1e8], device=device)
    out = torch.zeros(1, device=device)
    reduction_order[(1,)](x, out, BLOCK=16, MENDED=mended)
    return out, torch.tensor([14.0 if mended else 16.0])


RUNS: dict[str, Callable[[str, bool], Outcome]] = {
    "index not clamped": run_index_not_clamped,
    "two programs on one word": run_two_programs_on_one_word,
    "int32 overflow in an address": run_int32_overflow,
    "wrong stride": run_wrong_stride,
    "off-by-one grid": run_off_by_one_grid,
    "uninitialised accumulator": run_uninitialised,
    "misaligned vector": run_misaligned,
    "negative shift": run_negative_shift,
    "missing tail": run_missing_tail,
    "wrong reduction order": run_reduction_order,
}


@dataclass(frozen=True)
class How:
    """Where kernels run: a device and what surrounds the launch."""

    device: str
    context: Callable[[], contextlib.AbstractContextManager[Any]]


def how(name: str) -> How:
    """Return how "interpreter", "cuda", "linalg" or "hivm" runs kernels."""
    if name in ("linalg", "hivm"):
        from dsacp.ascend_ir import execute

        return How("cpu", lambda: execute(name))
    return How("cuda" if name == "cuda" else "cpu", contextlib.nullcontext)


def outcome(name: str, fault: str, mended: bool) -> str:
    """Return "passes", "differs", or the name of the error."""
    where = how(name)
    try:
        with where.context():
            found, expected = RUNS[fault](where.device, mended)
        found = found.cpu()
    except Exception as error:
        return type(error).__name__
    return "passes" if torch.equal(found, expected) else "differs"


def outcome_alone(name: str, fault: str, mended: bool) -> str:
    """Return the same from a process of its own, which a fault may end."""
    # a GPU's state does not survive a fork
    context = multiprocessing.get_context("spawn" if name == "cuda" else "fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, name, fault, mended))
    process.start()
    sender.close()
    try:
        return str(receiver.recv()) if receiver.poll(LIMIT_S) else "hangs"
    except EOFError:
        return "crashes"
    finally:
        process.kill()
        process.join()


def _send(sender: Any, name: str, fault: str, mended: bool) -> None:
    sender.send(outcome(name, fault, mended))


def main() -> int:
    """Print a line a fault; return 1 if a mended kernel does not pass."""
    name = sys.argv[1]
    wrong = 0
    for fault in RUNS:
        mended = outcome_alone(name, fault, mended=True)
        wrong += mended != "passes"
        print(f"{name} | {fault} | {outcome_alone(name, fault, False)} | mended: {mended}")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
