"""Device code that finds the request of a token among any number of requests.

Requests are looked at in tiles of a bounded size: one tile of all of them would outgrow the local
memory of an Ascend core, and would compile another kernel for every power of two.
"""

import triton
import triton.language as tl

NEVER = tl.constexpr(0x7FFFFFFF)
REQUEST_TILE = 256


@triton.jit
def _ends(query_start_loc, first, num_reqs, BLOCK_REQS: tl.constexpr):
    request = first + tl.arange(0, BLOCK_REQS)
    return tl.load(query_start_loc + 1 + request, mask=request < num_reqs, other=NEVER)


@triton.jit
def find_owner(query_start_loc, token, num_reqs, BLOCK_REQS: tl.constexpr, MORE_REQS: tl.constexpr):
    """Return the request that owns a token: ``num_reqs`` when none does."""
    owner = tl.sum((_ends(query_start_loc, 0, num_reqs, BLOCK_REQS) <= token).to(tl.int32), 0)
    if MORE_REQS:
        for first in range(BLOCK_REQS, num_reqs, BLOCK_REQS):
            ends = _ends(query_start_loc, first, num_reqs, BLOCK_REQS)
            owner += tl.sum((ends <= token).to(tl.int32), 0)
    return owner


@triton.jit
def find_owners(
    query_start_loc, token, num_reqs, BLOCK_REQS: tl.constexpr, MORE_REQS: tl.constexpr
):
    """Return the request that owns each of a block of tokens: ``num_reqs`` when none does."""
    ends = _ends(query_start_loc, 0, num_reqs, BLOCK_REQS)
    owner = tl.sum((ends[None, :] <= token[:, None]).to(tl.int32), 1)
    if MORE_REQS:
        for first in range(BLOCK_REQS, num_reqs, BLOCK_REQS):
            ends = _ends(query_start_loc, first, num_reqs, BLOCK_REQS)
            owner += tl.sum((ends[None, :] <= token[:, None]).to(tl.int32), 1)
    return owner


def request_tiles(num_reqs: int) -> dict[str, int]:
    """Return the kernels' constants for a batch: requests of a tile, and whether one is not all."""
    tile = min(triton.next_power_of_2(max(num_reqs, 1)), REQUEST_TILE)
    return {"BLOCK_REQS": tile, "MORE_REQS": num_reqs > tile}
