"""Device code of integer quotients: exact for all of int32 on every device.

Ascend divides vectors of integers in float32, which is wrong from 2 ** 24 on. A corrected quotient
costs less than a GPU's own division by a number that it does not know.
"""

import triton
import triton.language as tl


@triton.jit
def _exact(value, divisor, inverse):
    quotient = (value.to(tl.float32) * inverse).to(tl.int32)
    quotient += ((value - quotient * divisor).to(tl.float32) * inverse).to(tl.int32)
    rest = value - quotient * divisor
    return quotient + (rest >= divisor).to(tl.int32) - (rest < 0).to(tl.int32)


@triton.jit
def divide(value, divisor):
    """Return ``value // divisor``, rounded down, of int32 tensors; both may be scalars."""
    return _exact(value, divisor, 1.0 / divisor.to(tl.float32))


@triton.jit
def divide_by(value, DIVISOR: tl.constexpr, SHIFT: tl.constexpr):
    """Return ``value // DIVISOR``, rounded down; ``SHIFT`` is the divisor's ``power_shift``."""
    if SHIFT >= 0:
        quotient = value >> SHIFT
    else:
        quotient = _exact(value, DIVISOR, 1.0 / DIVISOR)
    return quotient


@triton.jit
def slot_fits(page, offset, SIZE: tl.constexpr, SHIFT: tl.constexpr):
    """Tell whether ``page * SIZE + offset`` is an int32, without leaving 32 bits."""
    last: tl.constexpr = 0x7FFFFFFF // SIZE
    if SHIFT >= 0:
        fits = page <= last
    else:
        fits = (page < last) | ((page == last) & (offset <= 0x7FFFFFFF - last * SIZE))
    return fits


def power_shift(value: int) -> int:
    """Return log2 of a power of two, or -1: a constant shift beats a division on every device."""
    return value.bit_length() - 1 if value & (value - 1) == 0 else -1
