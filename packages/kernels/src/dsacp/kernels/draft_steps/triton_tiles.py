"""How launches of the draft steps are cut into programs, by device and size."""

from typing import NamedTuple

from dsacp.kernels.draft_steps.triton_locate import SAMPLES

CHUNKS = int(SAMPLES.value)


class Tiles(NamedTuple):
    """How a launch is cut into programs.

    Attributes:
        rows: rows and tokens of a program that writes fields.
        rope_rows: tokens of a program that copies RoPE rows.
        warps: warps of either.
        vector: whether RoPE rows may move 16 bytes an access.
        gather: whether a token's request end is gathered rather than found with its request.
        chunk: requests that a token is compared with at once; the search covers CHUNKS of them.
    """

    rows: int
    rope_rows: int
    warps: int
    vector: bool = False
    gather: bool = False
    chunk: int = 256

    def constants(self) -> dict[str, int]:
        """Return the kernel's last compile-time arguments."""
        return {
            "VECTOR": self.vector,
            "GATHER": self.gather,
            "CHUNK": self.chunk,
            "BLOCK": self.rows,
            "ROPE_BLOCK": self.rope_rows,
        }


CUDA_TILES = Tiles(8, 4, 1, vector=True, gather=True)
LARGE_CUDA_TILES = Tiles(32, 8, 1, vector=True, gather=True, chunk=64)
OTHER_TILES = Tiles(32, 16, 4)
"""Measured on an H200; an NPU has few, wide cores."""
MAX_REQUESTS = CHUNKS * CUDA_TILES.chunk
LARGE = 2048
"""First-step tokens from which a batch counts as large: fewer programs then beat more of them."""


def choose_tiles(device: int | None, rows: int, tokens: int) -> Tiles:
    """Return the tiles of a first step of ``rows`` requests; ``device`` is None away from CUDA."""
    if device is None:
        return OTHER_TILES
    large = tokens >= LARGE and rows <= LARGE_CUDA_TILES.chunk * CHUNKS
    return LARGE_CUDA_TILES if large else CUDA_TILES
