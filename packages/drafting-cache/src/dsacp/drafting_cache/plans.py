"""Which work splits a step needs, each computed once and published to every group that asks."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dsacp.drafting_cache.arena import ArenaPlan
from dsacp.drafting_cache.geometry import StepGeometry
from dsacp.drafting_cache.types import GroupSpec
from dsacp.sas_metadata import QliSpec, SasPolicy, SasSpec


def plan_table(
    plan: ArenaPlan,
    groups: Sequence[GroupSpec],
    geometries: Sequence[StepGeometry],
    first_step: int,
    policy: SasPolicy,
) -> Tensor | None:
    """Return the ``plans`` table of ``dsacp.kernels.sas_plan``, or None when no group asks.

    The second group with an equal specification copies the first one's words: lengths and starts
    are the same in every group, so hit and miss leave the same words in each group's own buffer.
    """
    rows: list[tuple[int, ...]] = []
    for index, geometry in enumerate(geometries):
        step = first_step + index
        seen: dict[SasSpec | QliSpec, int] = {}
        for group in groups:
            for field, spec in (("sas_metadata", group.sas), ("qli_metadata", group.qli)):
                if spec is None:
                    continue
                same_as = seen.setdefault(spec, len(rows))
                rows.append(
                    spec.plan_row(
                        plan.offset((group.name, step, "local_query_start_loc")),
                        plan.offset((group.name, step, "local_seq_lens")),
                        plan.offset((group.name, step, field)),
                        geometry.rows,
                        policy,
                        same_as=-1 if same_as == len(rows) else same_as,
                    )
                )
    return torch.tensor(rows, dtype=torch.int32) if rows else None
