"""Runner v2 of vllm-ascend: whose call it is, and what its speculator reads of our metadata.

It calls ``build`` for everything and passes neither the step's dictionary nor, before 0.26, the
positions of draft steps. Its speculator makes builders of its own for the draft layers, so the
instance that is asked is the owner; draft steps 1..K-1 are one owner, rebuilt before each step.
"""

from collections.abc import Iterator
from functools import wraps
from types import ModuleType
from typing import Any

from dsacp.vllm.ascend.hooks import HAND_OVER
from dsacp.vllm.ascend.roles import FIRST, TARGET
from dsacp.vllm.ascend.shapes import Shape, first_shape, v2_draft_shape
from dsacp.vllm.settings import Blocker

LATER = FIRST + 1
"""The bank of all later draft steps of runner v2."""


def hook_speculator(module: ModuleType) -> None:
    """Let the speculators of a module claim the builders of draft layers."""
    for cls in {value for value in vars(module).values() if isinstance(value, type)}:
        if cls.__module__ == module.__name__ and HAND_OVER in vars(cls):
            _wrap(cls)


def _wrap(cls: Any) -> None:
    stock = vars(cls)[HAND_OVER]

    @wraps(stock)
    def set_attn(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = stock(self, *args, **kwargs)
        claim_drafts(self)
        return result

    setattr(cls, HAND_OVER, set_attn)


def claim_drafts(speculator: Any) -> None:
    """Mark the builders of draft steps; one that also serves the target is left to the host.

    A speculator without one of the attributes marks nothing: its builders then stand aside.

    Args:
        speculator: after its ``set_attn``, with ``attn_groups`` and ``target_attn_groups``.
    """
    try:
        target = list(_builders(speculator.target_attn_groups))
        drafts = list(_builders(speculator.attn_groups))
    except (AttributeError, TypeError):
        return
    for builder in (*target, *drafts):
        builder.dsacp_seen = True
    shared = {id(builder) for builder in target}
    for builder in drafts:
        builder.dsacp_drafts = True
        if id(builder) in shared:
            builder.refuse(
                Blocker(
                    "one builder for the target and the draft steps of runner v2",
                    "use runner v1 (VLLM_USE_V2_MODEL_RUNNER=0)",
                )
            )


def _builders(groups: Any) -> Iterator[Any]:
    for group in (group for kind in groups for group in kind):
        for builder in group.metadata_builders:
            if hasattr(builder, "dsacp_seen"):
                yield builder


def classify(
    common: Any, drafts: bool, real_reqs: int | None, tp_size: int, tp_rank: int
) -> tuple[int, Shape] | Blocker:
    """Return the bank and the shape of a call, or why it cannot be served.

    Args:
        common: the host's common metadata.
        drafts: whether the builder belongs to draft layers.
        real_reqs: requests without padding, None where the host does not say.
        tp_size: ranks that share the tokens.
        tp_rank: this rank.
    """
    if not common.causal:
        return Blocker("a non-causal step of runner v2", "use runner v1 for DSpark")
    if drafts and common.max_query_len == 1:
        return LATER, v2_draft_shape(common, tp_size, tp_rank)
    if common.positions is None:
        return Blocker("a step of runner v2 without positions", "use runner v1")
    return (FIRST if drafts else TARGET), first_shape(common, real_reqs, tp_size, tp_rank)


def add_host_lengths(metadata: Any, common: Any) -> None:
    """Give a draft step the lengths on the host that the speculator counts on and reads.

    It replaces ``seq_lens`` by itself plus 1 and reads it as a list, also inside a capture: on a
    device tensor that is a wait. The attention code reads the request metadata alone.
    """
    lengths = common.seq_lens_cpu[: common.num_reqs]
    metadata.seq_lens, metadata.seq_lens_cpu = lengths.clone(), lengths.clone()
