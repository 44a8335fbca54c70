"""Pack a step's host inputs in torch: the oracle of the Triton kernel."""

import torch
from torch import Tensor


def stage_inputs(
    query_start_loc: Tensor,
    seq_lens: Tensor,
    num_rejected: Tensor | None,
    drafts: Tensor | None,
    num_reqs: int,
    num_tokens: int,
    out: Tensor,
    rows: int,
    with_drafts: bool,
) -> None:
    """Write the staging block; see the package function."""
    sizes = [1, rows + 1, rows, rows, rows if with_drafts else 0]
    count, starts, lens, rejected, mask = out[: sum(sizes)].split_with_sizes(sizes)
    count.fill_(num_reqs)
    torch.clamp(query_start_loc[: num_reqs + 1], 0, num_tokens, out=starts[: num_reqs + 1])
    lens[:num_reqs] = seq_lens[:num_reqs]
    if num_reqs < rows:
        starts[num_reqs + 1 :] = starts[num_reqs : num_reqs + 1]
        lens[num_reqs:].zero_()
    if num_rejected is None:
        rejected.zero_()
    else:
        rejected[:num_reqs] = num_rejected[:num_reqs]
        rejected[num_reqs:].zero_()
    if with_drafts:
        mask.fill_(1)
        if drafts is not None:
            mask[:num_reqs] = drafts[:num_reqs]
