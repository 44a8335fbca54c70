"""One speculative step of upstream's own proposer, up to the draft model's first forward."""

import copy
import importlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from ascend_double.batches import Batch, common_metadata
from ascend_double.host import DRAFT_LAYER, HostDouble, proposer_class

FORWARD = "set_ascend_forward_context"
"""What upstream calls once the metadata of all K steps is there, right before its model runs."""
MOST_ROWS, MOST_TOKENS = 256, 2048
CONTEXTS = (200, 2000)
"""Bounds of the random lengths of requests that are served."""


class _ForwardReachedError(Exception):
    """The metadata is there; what follows is the model's."""


@dataclass(frozen=True)
class StepInputs:
    """What the runner hands to the drafter.

    Attributes:
        common: common attention metadata, without padding.
        accepted: int64 [requests], index of each request's last accepted token.
    """

    common: Any
    accepted: Tensor


class Proposal:
    """Upstream's ``_propose`` in FULL mode, around a builder of one class.

    Left out: copying the step's token ids, which needs the model, and everything from the first
    forward on. Everything between them is upstream's.

    Args:
        cls: the builder's class.
        drafts: K.
        real: requests of the batch.
        padded: requests of the captured bucket.
        tp_size: ranks; this is the first.

    Attributes:
        builder: the builder of the one draft group.
        own: upstream's proposer, without a model.
    """

    def __init__(self, cls: type[Any], drafts: int, real: int, padded: int, tp_size: int) -> None:
        sizes = ((drafts + 1) * padded,)
        self.double = HostDouble(drafts, tp_size, 0, MOST_ROWS // 2, 1024, sizes)
        self.builder = self.double.builder(cls, layer=DRAFT_LAYER)
        self.own = _proposer(self.double, self.builder, padded)
        self._real, self._padded = real, padded
        refused = tuple(index * 7 % (drafts + 1) for index in range(real))
        self._rejected = torch.tensor(refused, dtype=torch.int32)

    @property
    def mirrors(self) -> tuple[Tensor, ...]:
        """The proposer's and the runner's tensors that lie on the host."""
        return self.own.query_start_loc.cpu, self.own.runner.optimistic_seq_lens_cpu

    def inputs(self, seed: int) -> StepInputs:
        """Draw a batch and put it into the runner's buffers, from which the proposer pads."""
        rng, length = random.Random(seed), self.double.drafts + 1
        contexts = tuple(rng.randint(*CONTEXTS) for _ in range(self._real))
        batch = Batch(
            kind="graph",
            lengths=(length,) * self._real,
            contexts=contexts,
            tokens=self._padded * length,
            rows=self._padded,
            prefilling=(False,) * self._real,
            rejected=tuple(self._rejected.tolist()),
        )
        common = common_metadata(batch, self.double, rng)
        self._fill_runner(common)
        common.num_reqs = self._real
        for name in ("query_start_loc", "query_start_loc_cpu"):
            setattr(common, name, getattr(common, name)[: self._real + 1])
        for name in ("seq_lens", "seq_lens_cpu", "_seq_lens_cpu", "is_prefilling"):
            setattr(common, name, getattr(common, name)[: self._real])
        common.block_table_tensor = common.block_table_tensor[: self._real]
        accepted = common.query_start_loc[1:] - 1 - self._rejected
        return StepInputs(common, accepted.long())

    def run(self, inputs: StepInputs) -> list[Any]:
        """Let upstream prepare the metadata of its K steps; returns it, one a step."""
        found: list[Any] = []

        def ready(*_args: Any, **given: Any) -> None:
            found.extend(step[DRAFT_LAYER] for step in given["draft_attn_metadatas"])
            raise _ForwardReachedError

        module = importlib.import_module(type(self.own).__module__)
        with mock.patch.object(module, FORWARD, ready):
            try:
                self.own._propose(
                    target_token_ids=None,
                    target_positions=None,
                    target_hidden_states=None,
                    next_token_ids=None,
                    token_indices_to_sample=inputs.accepted,
                    common_attn_metadata=copy.copy(inputs.common),
                    target_model_batch_desc=SimpleNamespace(uniform=True),
                    sampling_metadata=None,
                    num_rejected_tokens_gpu=self._rejected,
                )
            except _ForwardReachedError:
                return found
        raise AssertionError(f"upstream's _propose no longer calls {FORWARD}")

    def _fill_runner(self, common: Any) -> None:
        """Put a padded batch into the runner's buffers, which outlive it."""
        runner, rows = self.own.runner, self._padded
        starts = torch.arange(rows + 1, dtype=torch.int32) * (self.double.drafts + 1)
        for buffer in (runner.seq_lens, runner.optimistic_seq_lens_cpu):
            buffer.zero_()
            buffer[:rows] = common.seq_lens
        for buffer in (self.own.query_start_loc.gpu, self.own.query_start_loc.cpu):
            buffer[: rows + 1] = starts
        self.own.positions[: common.positions.shape[0]] = common.positions

    @contextmanager
    def around(self, wrap: Any) -> Iterator[None]:
        """Replace the three callables that make up a step by ``wrap(name, callable)``."""
        with (
            mock.patch.object(self.builder, "build", wrap("build", self.builder.build)),
            mock.patch.object(
                self.builder, "build_for_drafting", wrap("draft", self.builder.build_for_drafting)
            ),
            mock.patch.object(
                self.own,
                "attn_update_stack_num_spec_norm",
                wrap("advance", self.own.attn_update_stack_num_spec_norm),
            ),
        ):
            yield


def _proposer(double: HostDouble, builder: Any, padded: int) -> Any:
    advancing = vars(double.proposer(builder, MOST_TOKENS))
    own = object.__new__(proposer_class())
    # what stands in for methods there is the class's own here
    kept = {name: value for name, value in advancing.items() if not callable(value)}
    group = SimpleNamespace(
        **vars(advancing["group"]), backend=SimpleNamespace(), kv_cache_group_id=0
    )
    # into the dictionary: some names are properties of the class, which then go first
    own.__dict__.update(
        kept,
        num_speculative_tokens=double.drafts,
        use_cuda_graph=True,
        parallel_drafting=False,
        supports_mm_inputs=False,
        sliding_window=None,
        decode_threshold=double.drafts + 1,
        constant_draft_positions=False,
        attn_layer_names=[DRAFT_LAYER],
        draft_attn_groups=[group],
        device=torch.device("cpu"),
        positions=torch.zeros(MOST_TOKENS, dtype=torch.int64),
        token_indices_to_sample=torch.zeros(MOST_TOKENS, dtype=torch.int32),
        query_start_loc=SimpleNamespace(gpu=_rows(1), cpu=_rows(1)),
        runner=_runner(double, padded),
        set_inputs_first_pass=_inputs_of_first_pass,
    )
    return own


def _rows(more: int = 0) -> Tensor:
    return torch.zeros(MOST_ROWS + more, dtype=torch.int32)


def _runner(double: HostDouble, padded: int) -> Any:
    from vllm.config import CUDAGraphMode

    bucket = SimpleNamespace(num_tokens=padded * (double.drafts + 1), num_reqs=padded, uniform=True)
    return SimpleNamespace(
        dcp_manager=None,
        input_batch=SimpleNamespace(lora_id_to_lora_request={}),
        cudagraph_dispatcher=SimpleNamespace(
            dispatch=lambda **_given: (CUDAGraphMode.FULL, bucket)
        ),
        seq_lens=_rows(),
        optimistic_seq_lens_cpu=_rows(),
        get_model=lambda: None,
        dynamic_eplb=False,
        eplb_heat_collection_status=False,
        _sync_metadata_across_dp=lambda tokens, **_given: (tokens, None, None),
        # its starts are written by `Proposal.inputs`, as the runner does before it drafts
        _pad_query_start_loc_for_fia=lambda *_given: padded,
    )


def _inputs_of_first_pass(**given: Any) -> tuple[int, Tensor, Any, None]:
    """Stand for upstream's copy of token ids and hidden states into the model's buffers."""
    common = given["cad"]
    return common.num_actual_tokens, given["token_indices_to_sample"], common, None
