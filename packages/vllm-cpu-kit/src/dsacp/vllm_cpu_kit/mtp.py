"""DeepSeek-V4's multi-token predictor on the CPU, from vLLM's own layers.

vLLM 0.32 registers a stub for the CPU. The structure is the model's: normalised embedding and
previous residual streams, two projections, one decoder block, and the shared head.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import ReplicatedLinear
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.mhc import HCHeadOp
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.models.deepseek_mtp import SharedHead
from vllm.model_executor.models.utils import maybe_prefix
from vllm.models.deepseek_v4.cpu.model import DeepseekV4DecoderLayer


def _float_parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape, dtype=torch.float32), requires_grad=False)


class CpuPredictorLayer(nn.Module):
    """One predictor: ``(embedding [T, D], residual streams [T, M*D]) -> streams [T, M*D]``."""

    def __init__(self, vllm_config: VllmConfig, topk_indices: Tensor, prefix: str) -> None:
        super().__init__()
        config = vllm_config.speculative_config.draft_model_config.hf_config
        size, self.streams = config.hidden_size, config.hc_mult
        self.eps, self.hc_eps = config.rms_norm_eps, config.hc_eps
        self.enorm = RMSNorm(size, eps=self.eps)
        self.hnorm = RMSNorm(size, eps=self.eps)
        quant = vllm_config.quant_config
        self.e_proj, self.h_proj = (
            ReplicatedLinear(
                size,
                size,
                bias=False,
                return_bias=False,
                quant_config=quant,
                prefix=f"{prefix}.{name}",
            )
            for name in ("e_proj", "h_proj")
        )
        self.hc_head_fn = _float_parameter(self.streams, self.streams * size)
        self.hc_head_base = _float_parameter(self.streams)
        self.hc_head_scale = _float_parameter(1)
        self.hc_head_op = HCHeadOp()
        self.shared_head = SharedHead(config=config, prefix=prefix, quant_config=quant)
        self.mtp_block = DeepseekV4DecoderLayer(
            vllm_config, prefix, topk_indices_buffer=topk_indices
        )

    def forward(self, positions: Tensor, embeds: Tensor, streams: Tensor) -> Tensor:
        """Advance the residual streams by one predicted token."""
        # a sequence's first token has no predecessor, so its embedding carries nothing here
        embeds = embeds.masked_fill((positions == 0).unsqueeze(-1), 0)
        previous = streams.view(streams.shape[0], self.streams, -1)
        mixed = self.h_proj(self.hnorm(previous)) + self.e_proj(self.enorm(embeds)).unsqueeze(1)
        out, residual, post, comb = self.mtp_block(x=mixed, positions=positions, input_ids=None)
        if post is not None:
            out = self.mtp_block.hc_post(out, residual, post, comb)
        flat: Tensor = out.flatten(1)
        return flat

    def hidden(self, streams: Tensor) -> Tensor:
        """Collapse streams [T, M*D] to the normalised hidden state [T, D] of the shared head."""
        streams = streams.view(streams.shape[0], self.streams, -1)
        collapsed = self.hc_head_op(
            streams, self.hc_head_fn, self.hc_head_scale, self.hc_head_base, self.eps, self.hc_eps
        )
        normalised: Tensor = self.shared_head(collapsed)
        return normalised


class CpuPredictor(nn.Module):
    """All predictor layers, numbered behind the target's."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        self.mtp_start_layer_idx = config.num_hidden_layers
        self.num_mtp_layers = config.num_nextn_predict_layers
        tokens = vllm_config.scheduler_config.max_num_batched_tokens
        self.topk_indices_buffer = torch.empty(tokens, config.index_topk, dtype=torch.int32)
        first = self.mtp_start_layer_idx
        self.layers = nn.ModuleDict(
            {
                str(index): CpuPredictorLayer(
                    vllm_config, self.topk_indices_buffer, f"{prefix}.layers.{index}"
                )
                for index in range(first, first + self.num_mtp_layers)
            }
        )
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab_size, config.hidden_size, prefix=maybe_prefix(prefix, "embed_tokens")
        )
        self.logits_processor = LogitsProcessor(config.vocab_size)

    def layer(self, spec_step_idx: int) -> CpuPredictorLayer:
        """Return the predictor of a draft step; steps beyond the last one start over."""
        index = self.mtp_start_layer_idx + spec_step_idx % self.num_mtp_layers
        layer = self.layers[str(index)]
        assert isinstance(layer, CpuPredictorLayer)
        return layer


class CpuDeepSeekV4MTP(nn.Module):
    """Draft model that vLLM's proposer and speculator drive."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        self.config = vllm_config.model_config.hf_config
        self.quant_config = vllm_config.quant_config
        self.model = CpuPredictor(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """Embed token ids [T] to [T, D]."""
        embeds: Tensor = self.model.embed_tokens(input_ids)
        return embeds

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        hidden_states: Tensor,
        intermediate_tensors: Any = None,  # noqa: ARG002 - vLLM passes it by name
        inputs_embeds: Tensor | None = None,
        spec_step_idx: int = 0,
    ) -> Tensor:
        """Run one draft step over the target's (or the last step's) residual streams."""
        if inputs_embeds is None:
            assert input_ids is not None
            inputs_embeds = self.embed_input_ids(input_ids)
        out: Tensor = self.model.layer(spec_step_idx)(positions, inputs_embeds, hidden_states)
        return out

    def compute_logits(self, hidden_states: Tensor, spec_step_idx: int = 0) -> Tensor | None:
        """Return logits [T, vocabulary] of residual streams."""
        layer = self.model.layer(spec_step_idx)
        logits: Tensor | None = self.model.logits_processor(
            layer.shared_head.head, layer.hidden(hidden_states)
        )
        return logits

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Refuse checkpoints: on the CPU this model exists with seeded weights only."""
        raise NotImplementedError(
            "the CPU kit's MTP model has seeded weights only: pass load_format='dsacp_seeded', "
            f"found a checkpoint ({type(weights).__name__})"
        )
