"""The builder: stages a batch, then recomputes every field of every step in place."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dsacp.core import (
    INT32_MAX,
    BufferRegion,
    CapacityError,
    DraftCapacity,
    StaleAddressError,
    TokenShard,
    Uncopied,
    check_whole,
)
from dsacp.drafting_cache.config import BuilderConfig, Overflow, Padding
from dsacp.drafting_cache.geometry import check_advanced
from dsacp.drafting_cache.session import Session
from dsacp.drafting_cache.shapes import Shapes
from dsacp.drafting_cache.turn import Turn
from dsacp.drafting_cache.types import BoundInputs, DraftBatch, GroupSpec, StepMetadata
from dsacp.drafting_cache.warmup import warm_up_batches
from dsacp.rope_proxy import RopeRegistry
from dsacp.sas_metadata import SasPolicy

DEBUG_VARIABLE = "DSACP_DEBUG"


class DraftMetadataBuilder(Uncopied):
    """Address-stable metadata of all draft steps of one rank (docs/invariants.md).

    The target's own metadata comes from a second instance with ``num_steps=1``.

    One owner: it is not copied or pickled, and one call runs at a time, whatever the thread; a
    second one beside it is refused. A builder may move to another thread as long as whoever uses
    it, and what it returned, has done so before: views of the last build are written by the next.
    With ``debug`` only the thread that made it, or bound last, may call; ``bind`` again with the
    same tensors hands it over. Different builders run in different threads.

    Args:
        capacity: bounds of every buffer.
        groups: KV groups whose layers are served.
        rope: registry of the layers' RoPE configurations.
        shard: any shard of this rank; only its size and rank are used.
        device: where buffers live.
        max_model_len: positions at or past it overflow.
        num_steps: banks to keep; K by default, 1 where ``causal`` is False.
        overflow: "reset" (vLLM V1, vllm-ascend) or "saturate" (vLLM V2).
        padding: "dummy" requests (Ascend) or "repeat"-ed starts (vLLM V2).
        causal: False for DSpark's query blocks, drafted in one step (upstream U35). It is step 0
            here, where a bank holds K+1 tokens a request; the adapter translates the host's 1.
        sas_policy: how work splits are planned.
        guard_words: 4-byte words kept between buffers.
        debug: read every input on the host and compare it with the counts, which waits for the
            device. None asks the environment once, here: ``DSACP_DEBUG=1``.

    Raises:
        LayoutError: configuration values contradict each other.
        CapacityError: a RoPE table is shorter than ``max_model_len``.
        AliasError: from any method, another thread is inside or owns the builder.
    """

    instead = "make a DraftMetadataBuilder of the same arguments and bind() it"

    def __init__(
        self,
        capacity: DraftCapacity,
        groups: Sequence[GroupSpec],
        rope: RopeRegistry,
        shard: TokenShard,
        device: torch.device | str = "cpu",
        *,
        max_model_len: int,
        num_steps: int | None = None,
        overflow: Overflow = "reset",
        padding: Padding = "dummy",
        causal: bool = True,
        sas_policy: SasPolicy = "upstream",
        guard_words: int = 16,
        debug: bool | None = None,
    ) -> None:
        default_steps = capacity.num_draft_tokens if causal else 1
        self.config = BuilderConfig(
            capacity=capacity,
            groups=tuple(groups),
            rope=rope,
            shard=shard,
            device=torch.device(device),
            max_model_len=max_model_len,
            num_steps=default_steps if num_steps is None else num_steps,
            overflow=overflow,
            padding=padding,
            causal=causal,
            sas_policy=sas_policy,
            guard_words=guard_words,
            debug=os.environ.get(DEBUG_VARIABLE) == "1" if debug is None else debug,
        )
        self._turn = Turn(self.config.debug)
        self._session: Session | None = Session.open(self.config, generation=0)
        self._generation = 0
        self._shapes = Shapes(self.config)

    @property
    def generation(self) -> int:
        """Counts releases; a graph captured in another generation holds freed addresses."""
        return self._generation

    def bind(self, block_tables: Mapping[str, Tensor], inputs: BoundInputs | None = None) -> None:
        """Name the host tensors that are read in place; once a generation.

        Args:
            block_tables: int32 [rows, columns] by group name, persistent. With
                ``padding="dummy"`` a padded request is a row too, so that a table has at least
                ``capacity.max_reqs`` of them.
            inputs: persistent batch tensors; with them a build needs no staging launch.

        Raises:
            LayoutError: a group has no table, or a tensor's type or size does not fit.
            StaleAddressError: other tensors are already bound.
        """
        self._turn.take_over()
        try:
            self._active().bind(block_tables, inputs)
        finally:
            self._turn.leave()

    def build(self, batch: DraftBatch) -> StepMetadata:
        """Compute step 0 in place and return its views; equal to ``build_for_drafting(batch, 0)``.

        Raises:
            CapacityError: the batch exceeds its buffers or its captured shape.
            LayoutError: nothing is bound, or an input does not fit.
        """
        return self.build_for_drafting(batch, 0)

    def build_for_drafting(self, batch: DraftBatch, draft_index: int) -> StepMetadata:
        """Compute one step from the batch that the host has already advanced to it.

        A later step has one token a request, and no rejected tokens: the host has dropped them.

        Raises:
            CapacityError, LayoutError: as ``build``; also for an unknown ``draft_index``.
        """
        check_whole("draft_index", draft_index, -INT32_MAX)
        if not 0 <= draft_index < self.config.num_steps:
            raise CapacityError(
                f"expected draft_index in 0..{self.config.num_steps - 1}, found {draft_index}: "
                "build more steps or translate the host's index in its adapter"
            )
        self._turn.enter()
        try:
            session = self._active()
            if draft_index > 0:
                check_advanced(batch)
            return session.build(batch, (self._shapes.one(batch, draft_index),), draft_index)[0]
        finally:
            self._turn.leave()

    def build_all(
        self, batch: DraftBatch, num_steps: int | None = None
    ) -> tuple[StepMetadata, ...]:
        """Compute steps 0..num_steps-1 from step-0 state alone, without a host sync.

        Raises:
            CapacityError, LayoutError: as ``build``; also for more steps than banks.
        """
        self._turn.enter()
        try:
            return self._active().build(batch, self._shapes.all(batch, num_steps), 0)
        finally:
            self._turn.leave()

    def stage(self, batch: DraftBatch, num_steps: int | None = None) -> None:
        """Bring a batch to the addresses that a captured ``refresh`` reads, before its replay.

        Also cleans what an earlier, larger batch left beyond this one. Replay the graph of the
        batch's own bucket: a smaller one's has no rows for the requests that it would drop. A
        larger one's does no harm, and the next launch rewrites the starts that it leaves.

        Raises:
            CapacityError: the batch is larger than the bucket was captured for.
        """
        self._turn.enter()
        try:
            self._active().stage(batch, self._shapes.all(batch, num_steps))
        finally:
            self._turn.leave()

    def refresh(self, bucket: int, num_steps: int | None = None) -> tuple[StepMetadata, ...]:
        """Recompute all steps of a bucket from bound and staged inputs; safe inside a capture.

        Run it once before the capture, so that host-made tables exist. Outside of a replay it
        reads the batch of a ``stage`` for the same bucket and steps once. With any other batch
        staged, such as the last one served, it stages an idle one first: what is captured after
        it (the drafter) must write no live slot. See ``stage_idle``.
        """
        self._turn.enter()
        try:
            return self._active().refresh(self._shapes.bucket(bucket, num_steps))
        finally:
            self._turn.leave()

    def stage_idle(self, bucket: int, num_steps: int | None = None) -> None:
        """Leave no request in what ``refresh`` reads; call it before a capture of a bucket.

        A replay cannot be seen from here, so that a batch staged for it may still be in place when
        its bucket is captured again. With ``BoundInputs`` the framework's own count is read,
        which nobody else can reset: this writes 0 into its ``num_reqs``, and the framework
        writes its own again with its next batch.

        Raises:
            CapacityError: there is no such bucket.
        """
        self._turn.enter()
        try:
            self._active().stage_idle(self._shapes.bucket(bucket, num_steps))
        finally:
            self._turn.leave()

    def warmup(self) -> None:
        """Run every launch once in every variant, so that none is compiled while serving.

        Call it after ``bind`` and before captures; it leaves no request behind.

        Raises:
            LayoutError: nothing is bound.
        """
        session = self._active()
        rows = session.bound_rows
        for batch in warm_up_batches(self.config.capacity, self.config.max_model_len, rows):
            self.build_all(batch)
            if self.config.num_steps > 1 and batch.num_tokens == batch.num_reqs > 0:
                later = replace(batch, num_rejected=None, num_tokens_padded=None)
                self.build_for_drafting(later, 1)
            if batch.bucket is not None:
                self.refresh(batch.bucket)

    def regions(self) -> tuple[BufferRegion, ...]:
        """Return every buffer's byte range, for ``dsacp.graph.GraphGuard``."""
        return self._active().buffers.regions()

    def storages(self) -> tuple[Tensor, ...]:
        """Return the storages that hold ``regions()``, guard words included."""
        return self._active().buffers.storages()

    def release(self) -> None:
        """Free every buffer (sleep mode); graphs captured before are of an older generation."""
        self._turn.enter()
        try:
            if self._session is not None:
                self._session.close()
                self._session = None
                self._generation += 1
        finally:
            self._turn.leave()

    def restore(self) -> None:
        """Allocate buffers again after ``release``; bind and capture anew."""
        self._turn.enter()
        try:
            if self._session is None:
                self._session = Session.open(self.config, self._generation)
        finally:
            self._turn.leave()

    def _active(self) -> Session:
        if self._session is None:
            raise StaleAddressError(
                f"expected live buffers, found generation {self._generation} released: call "
                "restore(), bind() and capture again"
            )
        return self._session
