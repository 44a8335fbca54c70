"""One serving configuration on the double: its builders, and the proposer that drives them."""

import copy
import importlib
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

WINDOW, TOPK, HEADS, ROPE_DIM = 128, 512, 64, 64
MAX_MODEL_LEN = 4096
BLOCK = 128
DEVICE = torch.device("cpu", 0)
"""Where builders put their buffers; the index tells such a request from one for the host."""
LAYERS = {1: "model.layers.0.attn", 4: "model.layers.1.attn", 128: "model.layers.2.attn"}
DRAFT_LAYER = "model.layers.43.attn"


@cache
def install() -> SimpleNamespace:
    """Install stand-ins, import vllm-ascend's own modules and register the RoPE tables."""
    import vllm.v1.worker.gpu_model_runner  # noqa: F401  first: it must not see torch.npu

    from ascend_double.imports import install_finder
    from ascend_double.npu import install_torch_npu
    from ascend_double.ops import install_ops

    install_torch_npu()
    install_finder()
    modules = SimpleNamespace(library=install_ops())
    names = {
        "utils": "vllm_ascend.attention.utils",
        "dsa_v1": "vllm_ascend.attention.dsa_v1",
        "dsa_cp": "vllm_ascend.attention.context_parallel.dsa_cp",
        "rope": "vllm_ascend.ops.rope_dsv4",
        "graph": "vllm_ascend.compilation.acl_graph",
        "proposer": "vllm_ascend.spec_decode.llm_base_proposer",
        "states": "vllm_ascend.attention.attention_v1",
    }
    for short, name in names.items():
        setattr(modules, short, importlib.import_module(name))
    _register_rope(modules.rope)
    return modules


def _register_rope(rope: Any) -> None:
    config = HostDouble(drafts=1, max_num_batched_tokens=1024).config
    window = {
        "rotary_dim": ROPE_DIM,
        "max_position_embeddings": MAX_MODEL_LEN,
        "scaling_factor": 1,
    }
    make = rope.ComplexExpRotaryEmbedding
    for name in (LAYERS[1], DRAFT_LAYER):
        make(config, name, 512, base=10000, **window)
    for ratio in (4, 128):
        groups = ["default", f"c{ratio}"]
        make(config, LAYERS[ratio], 512, base=160000, rope_groups=groups, **window)


def proposer_class() -> Any:
    """Return upstream's proposer, known by its advance from one draft step to the next."""
    return next(
        value
        for value in vars(install().proposer).values()
        if isinstance(value, type) and "attn_update_stack_num_spec_norm" in vars(value)
    )


@dataclass(frozen=True)
class HostDouble:
    """Serving configuration; makes upstream's builder or one of another class.

    Attributes:
        drafts: K.
        tp_size: ranks.
        tp_rank: this rank.
        max_num_seqs: requests.
        max_num_batched_tokens: tokens of a step.
        capture_sizes: captured token counts.
        method: speculative method.
        sleep_mode: whether the engine may sleep.
    """

    drafts: int = 3
    tp_size: int = 1
    tp_rank: int = 0
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 256
    capture_sizes: tuple[int, ...] = (16, 32, 64)
    method: str = "mtp"
    sleep_mode: bool = False

    @property
    def config(self) -> Any:
        """The parts of vLLM's configuration that the builders read."""
        hf = SimpleNamespace(
            model_type="deepseek_v4",
            index_head_dim=128,
            index_n_heads=64,
            index_topk=TOPK,
            num_attention_heads=HEADS,
            sliding_window=WINDOW,
            qk_rope_head_dim=ROPE_DIM,
        )
        model = SimpleNamespace(
            hf_config=hf,
            hf_text_config=hf,
            get_head_size=lambda: 512,
            enable_sleep_mode=self.sleep_mode,
            max_model_len=MAX_MODEL_LEN,
        )
        speculative = SimpleNamespace(
            num_speculative_tokens=self.drafts, method=self.method, use_eagle=lambda: True
        )
        scheduler = SimpleNamespace(
            max_num_seqs=self.max_num_seqs, max_num_batched_tokens=self.max_num_batched_tokens
        )
        parallel = SimpleNamespace(tensor_parallel_size=self.tp_size)
        return SimpleNamespace(
            model_config=model,
            speculative_config=speculative,
            scheduler_config=scheduler,
            parallel_config=parallel,
            compilation_config=SimpleNamespace(cudagraph_capture_sizes=list(self.capture_sizes)),
            additional_config={"enable_dsa_cp": True},
            kv_transfer_config=None,
        )

    def enter(self) -> None:
        """Make this the rank whose tensor-parallel group vLLM reports."""
        from vllm.distributed import parallel_state

        parallel_state._TP = SimpleNamespace(world_size=self.tp_size, rank_in_group=self.tp_rank)

    def builder(
        self, cls: type[Any], ratio: int = 1, layer: str | None = None, held: bool = True
    ) -> Any:
        """Make a builder of one KV group, held by a proposer as upstream's would hold it."""
        self.enter()
        spec = SimpleNamespace(compress_ratio=ratio, block_size=BLOCK)
        name = LAYERS[ratio] if layer is None else layer
        built = cls(spec, [name], self.config, DEVICE)
        if held and hasattr(built, "dsacp_seen"):
            built.dsacp_seen = True
        return built

    def proposer(self, builder: Any, max_tokens: int = 512) -> Any:
        """Make what upstream's draft advance reads of its proposer, around one builder."""
        cls = proposer_class()
        group = SimpleNamespace(
            get_metadata_builder=lambda: builder,
            kv_cache_spec=SimpleNamespace(block_size=BLOCK),
            layer_names=[DRAFT_LAYER],
        )

        def buffers(fill: int) -> list[torch.Tensor]:
            return [
                torch.full((max_tokens,), fill, dtype=torch.int32) for _ in range(self.drafts + 1)
            ]

        own = SimpleNamespace(
            shallow_copy_metadata=copy.copy,
            arange=torch.arange(max_tokens, dtype=torch.int32),
            token_arange_np=np.arange(max_tokens, dtype=np.int32),
            method=self.method,
            runner=SimpleNamespace(dcp_manager=None),
            dcp_size=1,
            pcp_size=1,
            uses_mrope=False,
            max_model_len=MAX_MODEL_LEN,
            has_gdn=False,
            block_size=BLOCK,
            draft_window_size=None,
            use_compress=True,
            draft_attn_groups=[group],
            slot_mapping_group=buffers(-1),
            seq_lens_group=buffers(0),
            query_start_loc_group=buffers(0),
            vllm_config=self.config,
            group=group,
        )
        own._adjust_tensor = lambda tensor, size: cls._adjust_tensor(own, tensor, size)
        own.advance = lambda *args, **kwargs: cls.attn_update_stack_num_spec_norm(
            own, *args, **kwargs
        )
        return own
