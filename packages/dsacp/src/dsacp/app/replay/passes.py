"""What runs on a step's metadata, inside the graph where there is one."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from dsacp.app.model.drafter import Proposal
from dsacp.app.model.sampling import Verified
from dsacp.drafting_cache import StepMetadata

Steps = tuple[StepMetadata, ...]
"""Consecutive steps of one rank."""


@dataclass(frozen=True)
class TargetResult:
    """What the target's pass leaves for the drafter and for the host.

    Attributes:
        hidden: [Tp, H].
        verified: sampled tokens and which drafts were refused.
        margins: [R, K+1], distance of the best logit to the second; infinite where unused.
    """

    hidden: Tensor
    verified: Verified
    margins: Tensor


class Passes(Protocol):
    """Target and drafter over metadata of all ranks; no host sync, so that both can be captured."""

    def target(self, steps: tuple[Steps, ...]) -> TargetResult | None:
        """Run the target on each rank's one step."""
        ...

    def draft(self, steps: tuple[Steps, ...], target: TargetResult | None) -> Proposal | None:
        """Run the drafter over each rank's draft steps."""
        ...


class MetadataOnly:
    """No model: steps are built and compared, and nothing reads them."""

    def target(self, steps: tuple[Steps, ...]) -> None:
        """Do nothing."""

    def draft(self, steps: tuple[Steps, ...], target: TargetResult | None) -> None:
        """Do nothing."""
