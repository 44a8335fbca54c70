"""RoPE tables, plain and YaRN (upstream U32)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dsacp.core import CapacityError, LayoutError


@dataclass(frozen=True)
class RopeConfig:
    """Everything that a table depends on; equal configurations share one table.

    Attributes:
        rotary_dim: rd, the rotated dimensions of a head; even.
        max_position_embeddings: the context the frequencies were trained for, before scaling.
        base: theta.
        scaling_factor: 1 gives plain RoPE, more gives YaRN and a table that much longer.
        beta_fast: rotations over the trained context above which a pair is left alone.
        beta_slow: rotations below which a pair is interpolated in full.

    Raises:
        LayoutError: a value is out of its range.
    """

    rotary_dim: int
    max_position_embeddings: int
    base: float
    scaling_factor: float = 1.0
    beta_fast: float = 32
    beta_slow: float = 1

    def __post_init__(self) -> None:
        if self.rotary_dim < 2 or self.rotary_dim % 2:
            raise LayoutError(
                f"expected an even rotary_dim >= 2, found {self.rotary_dim}: pass the rotated "
                "dimensions of a head, which turn in pairs"
            )
        bounds = {
            "max_position_embeddings >= 1": self.max_position_embeddings >= 1,
            "base > 1": self.base > 1,
            "scaling_factor >= 1": self.scaling_factor >= 1,
            "beta_fast >= beta_slow > 0": self.beta_fast >= self.beta_slow > 0,
        }
        for bound, holds in bounds.items():
            if not holds:
                raise LayoutError(f"expected {bound}, found {self}: correct the rope parameters")

    @property
    def table_length(self) -> int:
        """L, positions that the table covers."""
        return int(self.max_position_embeddings * self.scaling_factor)

    @property
    def yarn_range(self) -> tuple[int, int]:
        """``(low, high)``: pairs up to low keep their frequency, pairs from high are scaled."""
        low = max(math.floor(self._pair_of(self.beta_fast)), 0)
        high = min(math.ceil(self._pair_of(self.beta_slow)), self.rotary_dim - 1)
        # a context or base so extreme that the limits cross would turn the ramp around
        return low, max(low, high)

    def check_position(self, position: int) -> None:
        """Refuse a position past the table.

        Raises:
            CapacityError: the table has no such row.
        """
        if position >= self.table_length:
            raise CapacityError(
                f"position {position} needs {position + 1} RoPE rows, the table of {self} holds "
                f"{self.table_length}: lower max_model_len to {self.table_length}, or give the "
                "drafter the target's rope parameters"
            )

    def _pair_of(self, rotations: float) -> float:
        """Return the pair index that turns ``rotations`` times over the trained context."""
        turns = self.max_position_embeddings / (2 * math.pi * rotations)
        return self.rotary_dim * math.log(turns) / (2 * math.log(self.base))


def inverse_frequencies(config: RopeConfig) -> Tensor:
    """Return the fp32 [rd/2] angle per position of every pair, on the CPU."""
    pairs = torch.arange(config.rotary_dim // 2, dtype=torch.float32)
    plain = 1.0 / config.base ** (2 * pairs / config.rotary_dim)
    if config.scaling_factor == 1:
        return plain
    low, high = config.yarn_range
    width = high - low or 0.001
    ramp = ((pairs - low) / width).clamp(0, 1)
    return plain * (1 - ramp) + plain / config.scaling_factor * ramp


def build_table(config: RopeConfig, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Compute the table of one configuration.

    There is no attention factor: neither cos nor sin is scaled. Angles are fp32 products, as the
    hosts compute them; a float64 product would be closer to the formula, but further from the
    keys that the host already rotated and from the tables the weights were trained with. The
    arithmetic runs on the CPU, so that every device holds the same bits.

    Args:
        config: the configuration.
        device: where the table shall live.

    Returns:
        cos and sin, fp32 [L, rd], each value twice in a row (interleaved pairs).
    """
    positions = torch.arange(config.table_length, dtype=torch.float32)
    angles = torch.outer(positions, inverse_frequencies(config))
    cos, sin = (part.repeat_interleave(2, dim=1) for part in (angles.cos(), angles.sin()))
    return cos.to(device), sin.to(device)
