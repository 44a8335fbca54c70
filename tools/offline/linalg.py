"""What in triton-ascend's output (linalg) computes something else than the kernel asks for."""

import re
from collections.abc import Iterator

SLICE = re.compile(r"memref\.subview %\S+\[%\w+\] \[\d+\] \[1\]")
DIVISION = re.compile(r"arith\.(?:div|rem|floordiv|ceildiv)[su]i .*: tensor<")


def faults(text: str) -> Iterator[str]:
    """Yield a line a fault: an equality mask, or integer division of vectors.

    A mask ``row == n`` becomes a slice of one word at an offset that may lie outside the tile, and
    is stored by every program. Vectors of integers are divided in float32 later on.
    """
    for number, line in enumerate(text.splitlines(), 1):
        if SLICE.search(line):
            yield f"line {number}: a slice of fixed size at an offset of its own: {line.strip()}"
        if DIVISION.search(line):
            yield f"line {number}: a vector is divided: {line.strip()}"
