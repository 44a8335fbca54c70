"""A Triton kernel for the capture tests; imported by path, only where Triton is installed."""

import triton
import triton.language as tl


@triton.jit
def probe(source, out, count, width: tl.constexpr = 4):
    rows = tl.arange(0, width)
    inside = rows < count
    tl.store(out + rows, tl.load(source + rows, mask=inside) + 1, mask=inside)
