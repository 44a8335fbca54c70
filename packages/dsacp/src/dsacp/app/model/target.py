"""The target model: hidden states and logits, driven by metadata alone."""

from collections.abc import Sequence

from torch import Tensor

from dsacp.app.model.caches import LayerCaches
from dsacp.app.model.config import ModelConfig, rope_layer
from dsacp.app.model.join import Join, join_simulated
from dsacp.app.model.layer import LayerShape, RankStep, run_layer
from dsacp.app.model.ops import rms_norm
from dsacp.app.model.weights import ModelWeights
from dsacp.drafting_cache import StepMetadata


def target_forward(
    config: ModelConfig,
    weights: ModelWeights,
    input_ids: Tensor,
    metadata: Sequence[StepMetadata],
    caches: Sequence[Sequence[LayerCaches]],
    join: Join = join_simulated,
) -> Tensor:
    """Run all layers over one step.

    Args:
        config: model sizes.
        weights: shared by the ranks.
        input_ids: int [Tp], tokens of the step padded to the tensor-parallel size.
        metadata: one step of each rank of this process, in order.
        caches: by rank, then by layer.
        join: brings the rows of all ranks together.

    Returns:
        Hidden states [Tp, H], before the final norm.
    """
    hidden = weights.embedding[input_ids.long()]
    for index, ratio in enumerate(config.compress_ratios):
        ranks = [
            RankStep(step, layers[index]) for step, layers in zip(metadata, caches, strict=True)
        ]
        shape = LayerShape(rope_layer(ratio), "swa", ratio)
        hidden = run_layer(config, shape, weights.layers[index], hidden, ranks, join)
    return hidden


def logits(weights: ModelWeights, hidden: Tensor) -> Tensor:
    """Return [rows, V] for hidden rows [rows, H]; target and drafter share the head."""
    return rms_norm(hidden) @ weights.head.T
