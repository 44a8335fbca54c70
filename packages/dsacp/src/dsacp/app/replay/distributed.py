"""One rank a process, as ``torchrun`` starts them: process group, agreement, joint report."""

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from dsacp.app.processes.workers import WorkerError, end_with_parent
from dsacp.app.replay.batches import HostBatch
from dsacp.app.replay.drivers import Driver, Pair
from dsacp.app.replay.executors import DraftRun, TargetRun
from dsacp.app.replay.result import ReplayResult
from dsacp.app.replay.settings import ReplayConfig
from dsacp.core import LayoutError

BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}


def launched() -> bool:
    """Whether ``torchrun`` started this process together with others."""
    return dist.is_torchelastic_launched() and int(os.environ["WORLD_SIZE"]) > 1


def is_first() -> bool:
    """Whether this process reports: rank 0, or a process that is alone."""
    return not launched() or os.environ["RANK"] == "0"


def enter_processes(config: ReplayConfig) -> None:
    """Choose this process's GPU and meet the others; does nothing without ``torchrun``.

    Raises:
        LayoutError: there is not one process for each rank, or no GPU for this one.
    """
    if not launched():
        return
    end_with_parent()  # torchrun ends its processes, unless it is killed itself
    processes, local = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
    if processes != config.tp:
        raise LayoutError(
            f"expected one process for each of --tp {config.tp} ranks, found {processes}: start "
            f"torchrun with --nproc-per-node {config.tp}, or the command without torchrun"
        )
    if config.device == "cuda":
        found = torch.cuda.device_count()
        if local >= found:
            raise LayoutError(f"expected a GPU for each process, found {found} for rank {local}")
        torch.cuda.set_device(local)
    dist.init_process_group(BACKENDS[config.device])


def leave_processes() -> None:
    """Part from the other processes once all have come here."""
    if dist.is_initialized() and launched():
        # NCCL waits for captured collectives, so that their graphs must go first.
        gc.collect()
        dist.destroy_process_group()


def own_ranks() -> tuple[int, ...]:
    """Return the one rank of this process."""
    return (dist.get_rank(),)


def gather_results(own: ReplayResult) -> ReplayResult:
    """Return what all ranks found: mismatches, moved addresses and compared fields add up."""
    found: list[ReplayResult | None] = [None] * dist.get_world_size()
    dist.all_gather_object(found, own)
    first, *others = [result for result in found if result is not None]
    for other in others:
        first.join(other)
    return first


@contextmanager
def names_lost_peers() -> Iterator[None]:
    """Raise ``WorkerError`` where a collective finds that another process is gone."""
    try:
        yield
    except RuntimeError as error:
        text = " ".join(str(error).split())
        if isinstance(error, dist.DistError) or "gloo" in text:
            raise WorkerError(
                f"expected every rank to take part to the end, found {text[:200]}: see what the "
                "rank that ended first says"
            ) from error
        raise


@dataclass(frozen=True)
class AgreeingDriver:
    """Stops a replay whose processes would schedule different steps and wait forever.

    Attributes:
        inner: where the tokens come from.
    """

    inner: Driver

    def load(self, batch: HostBatch) -> None:
        """Bring the step's tokens to both models."""
        self.inner.load(batch)

    def verify(
        self, batch: HostBatch, eager: TargetRun, graph: TargetRun
    ) -> tuple[Sequence[int], Pair]:
        """Return what ``inner`` does, once every rank has sampled as many tokens.

        Raises:
            LayoutError: ranks differ.
        """
        sampled, rejected = self.inner.verify(batch, eager, graph)
        self._agree(batch, sampled)
        return sampled, rejected

    def propose(self, batch: HostBatch, eager: DraftRun, graph: DraftRun) -> Sequence[int]:
        """Return drafts by row, once every rank has as many."""
        proposed = self.inner.propose(batch, eager, graph)
        self._agree(batch, proposed)
        return proposed

    def _agree(self, batch: HostBatch, counts: Sequence[int]) -> None:
        own = torch.tensor(counts)
        everyone: list[Tensor] = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, own)
        for rank, other in enumerate(everyone):
            if not torch.equal(own, other):
                raise LayoutError(
                    f"expected the same token counts on every rank in engine step "
                    f"{batch.step.index}, found {own.tolist()} on rank {dist.get_rank()} and "
                    f"{other.tolist()} on rank {rank}: their models differ"
                )
