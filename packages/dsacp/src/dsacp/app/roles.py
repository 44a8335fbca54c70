"""What a replay puts on top of metadata: the reference model, or nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from dsacp.app.acceptance import GeometricAcceptance
from dsacp.app.builders import Setup
from dsacp.app.drivers import Driver, SeededDriver
from dsacp.app.groups import AttentionShape, GroupPlan
from dsacp.app.model.config import ModelConfig
from dsacp.app.model.driver import ModelDriver
from dsacp.app.model.inputs import Conversations, StepTokens
from dsacp.app.model.reference import ReferenceModel
from dsacp.app.model.weights import make_weights
from dsacp.app.passes import MetadataOnly, Passes
from dsacp.app.result import ReplayResult
from dsacp.app.settings import Limits, ReplayConfig
from dsacp.app.trace import TraceRequest


@dataclass(frozen=True)
class Roles:
    """The passes of both executors and what drives them.

    Attributes:
        eager: passes of the eager executor.
        graph: passes of the graph executor.
        driver: where tokens come from.
        warm: fills the graph model's inputs for a capture of that many tokens.
    """

    eager: Passes
    graph: Passes
    driver: Driver
    warm: Callable[[int], None]


def group_plan(config: ReplayConfig, limits: Limits) -> GroupPlan:
    """Return groups and RoPE of the reference model, or of DeepSeek-V4 when there is none."""
    shape = AttentionShape() if config.drafter == "none" else _model(config).attention
    return shape.plan(limits.max_model_len)


def make_roles(setup: Setup, trace: Sequence[TraceRequest], result: ReplayResult) -> Roles:
    """Make what the configuration asks for; two models share weights and nothing else."""
    config = setup.config
    if config.drafter == "none":
        chance = GeometricAcceptance(config.acceptance, config.draft_tokens, config.seed)
        return Roles(MetadataOnly(), MetadataOnly(), SeededDriver(chance), lambda _: None)
    shape = _model(config)
    # Rows of a float32 matmul change with the batch size; only float64 keeps tokens over tp.
    dtype = torch.float64 if config.device == "cpu" else torch.float32
    weights = make_weights(shape, dtype, setup.device)
    blocks = {group.name: group.num_blocks for group in setup.scheduler.groups}
    eager, graph = (
        ReferenceModel.allocate(shape, weights, setup.capacity, blocks) for _ in range(2)
    )
    lengths = {index: request.input_length for index, request in enumerate(trace)}
    texts = Conversations(lengths, shape.vocab_size, config.seed)

    def warm(size: int) -> None:
        drafts = config.draft_tokens
        rows = size // (drafts + 1)
        graph.inputs.write(StepTokens((0,) * size, (drafts,) * rows, (-1,) * rows))

    return Roles(eager, graph, ModelDriver(eager, graph, texts, result), warm)


def _model(config: ReplayConfig) -> ModelConfig:
    return ModelConfig(seed=config.seed)
