"""Which rows and tokens a build is for, read from the host's integers alone."""

from dataclasses import dataclass
from typing import Any

from dsacp.core import DraftCapacity, TokenShard, align_capture_sizes


@dataclass(frozen=True)
class Shape:
    """One build.

    Attributes:
        rows: request rows of the metadata, padding included.
        real_reqs: rows that hold a request.
        tokens: the host's padded tokens.
        real_tokens: tokens that hold a query.
        shard: this rank's slice of ``tokens``.
    """

    rows: int
    real_reqs: int
    tokens: int
    real_tokens: int
    shard: TokenShard


def token_count(common: Any) -> int:
    """Return the padded tokens of a step.

    Runner v2 leaves ``num_input_tokens`` at 0 and counts padding among the actual tokens.
    """
    return int(common.num_input_tokens or common.num_actual_tokens)


def first_shape(common: Any, real_reqs: int | None, tp_size: int, tp_rank: int) -> Shape:
    """Return the shape of a step whose query starts and lengths the host has made.

    Args:
        common: vllm-ascend's common attention metadata.
        real_reqs: requests without padding, None where the host does not say.
        tp_size: ranks that share the tokens.
        tp_rank: this rank.
    """
    rows, tokens = common.num_reqs, token_count(common)
    real = rows if real_reqs is None else min(real_reqs, rows)
    owned = int(common.query_start_loc_cpu[real])
    return Shape(
        rows=rows,
        real_reqs=real,
        tokens=tokens,
        real_tokens=min(common.num_actual_tokens, owned, tokens),
        shard=TokenShard(tokens, tp_size, tp_rank),
    )


def later_shape(common: Any, tp_size: int, tp_rank: int) -> Shape:
    """Return the shape of a draft step of one token a request.

    At capture the host still describes K+1 tokens a request (upstream U30). A replay brings
    ``num_input_tokens`` one-token requests, so that is what is captured, with no real row.
    """
    tokens = common.num_input_tokens
    capturing = common.max_query_len > 1
    real = 0 if capturing else min(common.num_actual_tokens, tokens)
    return Shape(
        rows=tokens if capturing else common.num_reqs,
        real_reqs=real,
        tokens=tokens,
        real_tokens=real,
        shard=TokenShard(tokens, tp_size, tp_rank),
    )


def v2_draft_shape(common: Any, tp_size: int, tp_rank: int) -> Shape:
    """Return the shape of a draft step of runner v2, which says in lengths alone what is padding.

    No integer here depends on the batch inside a bucket, so a graph may hold the build itself.
    """
    tokens = token_count(common)
    return Shape(
        rows=common.num_reqs,
        real_reqs=common.num_reqs,
        tokens=tokens,
        real_tokens=tokens,
        shard=TokenShard(tokens, tp_size, tp_rank),
    )


def make_capacity(vllm_config: Any, tp_size: int) -> DraftCapacity:
    """Derive buffer bounds from the engine's configuration (docs/invariants.md I3).

    vllm-ascend pads to every capture size that it was given, on the grid or not, so the sizes are
    rounded up here: they bound buffers and choose no bucket.
    """
    scheduler = vllm_config.scheduler_config
    speculative = getattr(vllm_config, "speculative_config", None)
    drafts = getattr(speculative, "num_speculative_tokens", None) or 1
    compilation = getattr(vllm_config, "compilation_config", None)
    sizes = getattr(compilation, "cudagraph_capture_sizes", None) or ()
    return DraftCapacity.from_config(
        scheduler.max_num_seqs,
        max(scheduler.max_num_batched_tokens, drafts + 1),
        drafts,
        tp_size,
        align_capture_sizes(sizes, drafts, tp_size),
        layout="tokens",
    )
