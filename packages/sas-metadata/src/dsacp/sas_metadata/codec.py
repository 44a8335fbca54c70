"""The 1024 words as ranges, and back (upstream U4, U8)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dsacp.core import LayoutError
from dsacp.kernels.sas_plan.reference import encode
from dsacp.sas_metadata.plan import SAS_METADATA_SIZE
from dsacp.sas_metadata.spec import QliSpec, SasSpec


@dataclass(frozen=True)
class CoreRange:
    """Rows of one core, or of one pair of cores: start inclusive, end exclusive.

    ``(end_req, 0)`` ends before request ``end_req``. A row is a query token of attention, and four
    query tokens of the indexer.
    """

    core: int
    start_req: int
    start_row: int
    end_req: int
    end_row: int

    @property
    def start(self) -> tuple[int, int]:
        """First (request, row)."""
        return self.start_req, self.start_row

    @property
    def end(self) -> tuple[int, int]:
        """One past the last (request, row)."""
        return self.end_req, self.end_row


def records(words: Tensor | Sequence[int], spec: SasSpec | QliSpec) -> list[list[int]]:
    """Return the raw record of every physical core of the launch.

    Raises:
        LayoutError: there are not exactly 1024 words.
    """
    flat = words.tolist() if isinstance(words, Tensor) else list(words)
    if len(flat) != SAS_METADATA_SIZE:
        raise LayoutError(
            f"expected {SAS_METADATA_SIZE} words, found {len(flat)}: pass the whole plan"
        )
    size = spec.record_size
    return [flat[size * core : size * (core + 1)] for core in range(spec.num_cores)]


def decode_sas(words: Tensor | Sequence[int], spec: SasSpec | QliSpec) -> list[CoreRange]:
    """Return the range of every enabled core; a pair of cores (A5, 128 heads) counts as one core.

    Decoding trusts the words; ``check_legal`` is the judge of them.

    Args:
        words: int32 [1024], or a sequence of as many integers (a device tensor is copied: a sync).
        spec: what the words were planned for; gives record size and core count.

    Raises:
        LayoutError: there are not exactly 1024 words.
    """
    step = 2 if spec.paired else 1
    return [
        CoreRange(core, record[1], record[2], record[4], record[5])
        for core, record in enumerate(records(words, spec)[::step])
        if record[0] == 1
    ]


def encode_sas(
    ranges: Sequence[CoreRange], spec: SasSpec | QliSpec, block_count: int = 0
) -> Tensor:
    """Return the words of contiguous ranges of cores 0, 1, ...; the inverse of ``decode_sas``.

    Args:
        ranges: one a core, each starting where the one before ends.
        spec: gives record size and core count.
        block_count: word 8 of paired records (A5, 128 heads): at least the KV blocks of any core.

    Raises:
        LayoutError: the ranges leave a gap, skip a core, or outnumber the cores.
    """
    plan_spec = spec.plan_spec()
    if not 1 <= len(ranges) <= plan_spec.logical_cores:
        raise LayoutError(
            f"expected 1..{plan_spec.logical_cores} ranges, found {len(ranges)}: one a core"
        )
    before = (0, 0)
    for core, item in enumerate(ranges):
        if item.core != core or item.start != before:
            raise LayoutError(
                f"expected core {core} from {before}, found core {item.core} from {item.start}: "
                "ranges are contiguous and start at core 0, row (0, 0)"
            )
        before = item.end
    words = encode(plan_spec, [item.end for item in ranges], block_count)
    return torch.frombuffer(words, dtype=torch.int32).clone()
