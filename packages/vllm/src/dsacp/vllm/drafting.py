"""What tells our builders which requests draft, and which builders make later draft steps.

vLLM 0.32 marks a chunk of an unfinished prompt on the device: the V1 runner by
``discard_request_mask``, the V2 runner by a sampled count of 0, both in the batch's order of rows.
``CommonAttentionMetadata.is_prefilling`` is no such mark: the last chunk of a prompt, which drafts,
carries it too, and the proposer of V1 drops it.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from dsacp.vllm.aside import Engine


class DraftMask:
    """Which requests draft, int32 on the device at one address; a graph may hold it.

    Args:
        rows: requests of the largest batch.
        device: of the batch.
    """

    def __init__(self, rows: int, device: torch.device) -> None:
        self._words = torch.ones(rows, dtype=torch.int32, device=device)

    def of(self, unfinished: Tensor | None, num_reqs: int) -> Tensor | None:
        """Return int32 [>= num_reqs], 0 on chunks of unfinished prompts; None: all of them draft.

        Args:
            unfinished: bool [rows], the framework's mark, or None where it has none.
            num_reqs: requests of the batch, padded ones included.
        """
        if unfinished is None:
            return None
        rows = min(num_reqs, unfinished.shape[0], self._words.shape[0])
        torch.logical_not(unfinished[:rows], out=self._words[:rows])
        return self._words


def find_mark(runner: Any, engine: Engine) -> None:
    """Keep the runner's mark of unfinished prompts for the builders of an engine."""
    mask = getattr(getattr(runner, "discard_request_mask", None), "gpu", None)
    if isinstance(mask, Tensor):
        engine.unfinished = mask
    speculator = getattr(runner, "speculator", None)
    if speculator is not None:
        watch_speculator(speculator, engine)


def watch_speculator(speculator: Any, engine: Engine) -> None:
    """Note V2's sampled counts before each proposal, and whose builders make its later steps."""
    propose, set_attn = speculator.propose, speculator.set_attn
    mark = torch.zeros(speculator.max_num_reqs, dtype=torch.bool, device=speculator.device)
    engine.unfinished = mark
    sampled_of = _argument(propose, "num_sampled")

    @wraps(propose)
    def noting(*args: Any, **kwargs: Any) -> Any:
        sampled = sampled_of(args, kwargs)
        torch.eq(sampled, 0, out=mark[: sampled.shape[0]])
        return propose(*args, **kwargs)

    @wraps(set_attn)
    def claiming(*args: Any, **kwargs: Any) -> Any:
        result = set_attn(*args, **kwargs)
        claim_drafts(speculator)
        return result

    speculator.propose, speculator.set_attn = noting, claiming


def claim_drafts(speculator: Any) -> None:
    """Tell the builders of a speculator that each batch they see is a later draft step."""
    for group in (group for groups in speculator.attn_groups for group in groups):
        for builder in group.metadata_builders:
            if hasattr(builder, "drafts_later"):
                builder.drafts_later = True


def _argument(function: Callable[..., Any], name: str) -> Callable[[Any, Any], Any]:
    """Return how to find an argument of a call, by name or by its place."""
    place = list(inspect.signature(function).parameters).index(name)
    return lambda args, kwargs: kwargs[name] if name in kwargs else args[place]
