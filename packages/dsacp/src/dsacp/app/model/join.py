"""How the attention rows of all ranks come together: in one process, or between processes."""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from dsacp.kernels.registry import kernel_op

# torch 2.13 renamed it and warns of the old name.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

Join = Callable[[Sequence[Tensor]], Tensor]
"""Takes the rows [T', H] of the ranks of this process; returns those of all ranks, [Tp, H]."""


def join_simulated(outputs: Sequence[Tensor]) -> Tensor:
    """Concatenate the rows of ranks that all live in this process."""
    return torch.cat(tuple(outputs))


def join_distributed(outputs: Sequence[Tensor]) -> Tensor:
    """Gather this process's rows and everyone else's through the default process group.

    Args:
        outputs: the one rank of this process, [T', H]; every process has as many rows.
    """
    (rows,) = outputs
    joined = rows.new_empty((rows.shape[0] * dist.get_world_size(), rows.shape[1]))
    _join_rows(rows.contiguous(), joined)
    return joined


# An operator of ours, because the wait for the collective must be inside it: a tape on the CPU
# repeats operators, and would repeat only the start of an asynchronous one.
@kernel_op("dsacp::join_rows", mutates_args=("out",))
def _join_rows(rows: Tensor, out: Tensor) -> None:
    _all_gather(out, rows)
