"""Runner v2's calls: upstream's own ``build_attn_metadata`` and speculator, around our batches."""

import importlib
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ascend_double.batches import COLUMNS
from ascend_double.host import BLOCK, DRAFT_LAYER, MAX_MODEL_LEN, install


@cache
def modules() -> SimpleNamespace:
    """Import runner v2's modules of the installed wheel."""
    install()
    importlib.import_module("vllm.v1.worker.gpu.spec_decode.speculator")
    root = "vllm_ascend.worker.v2"
    return SimpleNamespace(
        attn=importlib.import_module(f"{root}.attn_utils"),
        speculator=importlib.import_module(f"{root}.spec_decode.autoregressive.speculator"),
    )


def group_of(builder: Any) -> Any:
    """Return what runner v2 reads of an attention group."""
    return SimpleNamespace(
        get_metadata_builder=lambda _index: builder,
        metadata_builders=[builder],
        layer_names=[DRAFT_LAYER],
    )


def speculator(drafts: Any, target: Any) -> Any:
    """Return upstream's speculator without its engine, its builders already made."""
    cls = modules().speculator.AscendAutoRegressiveSpeculator
    own = cls.__new__(cls)
    own.attn_groups, own.target_attn_groups = [[group_of(drafts)]], [[group_of(target)]]
    own.attn_architecture, own.max_model_len = None, MAX_MODEL_LEN
    return own


def build(builder: Any, **given: Any) -> Any:
    """Let upstream's ``build_attn_metadata`` ask a builder; returns the layer's metadata."""
    found = modules().attn.build_attn_metadata(
        attn_groups=[[group_of(builder)]],
        max_seq_len=MAX_MODEL_LEN,
        kv_cache_config=SimpleNamespace(kv_cache_groups=[SimpleNamespace()]),
        **given,
    )
    return found[DRAFT_LAYER]


def build_target(builder: Any, common: Any, **given: Any) -> Any:
    """Ask for a target's step as ``prepare_attn`` does: no dictionary, no ``num_input_tokens``."""
    return build(
        builder,
        num_reqs=common.num_reqs,
        num_tokens=common.num_input_tokens,
        query_start_loc_gpu=common.query_start_loc,
        query_start_loc_cpu=common.query_start_loc_cpu,
        max_query_len=common.max_query_len,
        seq_lens=common.seq_lens,
        block_tables=[common.block_table_tensor],
        slot_mappings=[common.slot_mapping],
        seq_lens_np=common.seq_lens_cpu.numpy(),
        positions=common.positions[: common.num_input_tokens],
        attn_state=common.attn_state,
        **given,
    )


@dataclass(frozen=True)
class DraftInputs:
    """The speculator's persistent inputs of draft steps, updated in place between them.

    Attributes:
        starts: int32 [rows + 1].
        lengths: int32 [rows], 0 on padding.
        positions: int64 [rows].
        slots: int32 [rows].
        table: int32 [rows, columns].
    """

    starts: Tensor
    lengths: Tensor
    positions: Tensor
    slots: Tensor
    table: Tensor

    @classmethod
    def of(cls, lengths: tuple[int, ...], rows: int, seed: int) -> "DraftInputs":
        """Make the inputs of step 1: true lengths, padding at the end."""
        generator = torch.Generator().manual_seed(seed)
        padded = [*lengths, *[0] * (rows - len(lengths))]
        own = cls(
            torch.arange(rows + 1, dtype=torch.int32).clamp(max=len(lengths)),
            torch.tensor(padded, dtype=torch.int32),
            torch.tensor(padded, dtype=torch.int64).sub(1).clamp(min=0),
            torch.zeros(rows, dtype=torch.int32),
            torch.randint(1, 9000, (rows, COLUMNS), dtype=torch.int32, generator=generator),
        )
        own.place()
        return own

    def copy_(self, other: "DraftInputs") -> None:
        """Take over another step's values in place."""
        for name in ("starts", "lengths", "positions", "slots", "table"):
            getattr(self, name).copy_(getattr(other, name))

    def place(self) -> None:
        """Compute slots, as the runner does on the device before every step."""
        block = self.table.gather(1, (self.positions // BLOCK).view(-1, 1)).view(-1)
        slots = block * BLOCK + self.positions % BLOCK
        self.slots.copy_(torch.where(self.lengths > 0, slots, -1))

    def advance(self) -> None:
        """Go on by one token, in place."""
        real = self.lengths > 0
        self.lengths.add_(real).clamp_(max=MAX_MODEL_LEN)
        self.positions.add_(real).clamp_(max=MAX_MODEL_LEN - 1)
        self.place()

    def build(self, builder: Any, with_positions: bool = True) -> Any:
        """Ask for a draft step as ``_build_draft_attn_metadata`` does."""
        rows = self.lengths.numel()
        return build(
            builder,
            num_reqs=rows,
            num_tokens=rows,
            query_start_loc_gpu=self.starts,
            query_start_loc_cpu=torch.arange(rows + 1, dtype=torch.int32),
            max_query_len=1,
            seq_lens=self.lengths,
            block_tables=[self.table],
            slot_mappings=[self.slots],
            positions=self.positions if with_positions else None,
        )
