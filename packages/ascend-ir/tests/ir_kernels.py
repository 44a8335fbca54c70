"""Small kernels for tests of launches."""

import triton
import triton.language as tl


@triton.jit
def add_one(x, out, count, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + row, mask=row < count, other=0)
    tl.store(out + row, value + 1, mask=row < count)


@triton.jit
def program_ids(out, width, height):
    at = tl.program_id(0) + width * (tl.program_id(1) + height * tl.program_id(2))
    tl.store(out + at, tl.program_id(0) + 10 * tl.program_id(1) + 100 * tl.program_id(2))


@triton.jit
def last_program_wins(out):
    tl.store(out, tl.program_id(0))
