"""What a work plan is made for: heads, cores, window and compression (upstream U2, U3)."""

from dataclasses import dataclass
from typing import Literal

from dsacp.core import LayoutError, check_whole
from dsacp.kernels.sas_plan.costs import PlanSpec
from dsacp.kernels.sas_plan.table import MAX_CORES

SasPolicy = Literal["upstream", "balanced"]
DeviceFamily = Literal["a2", "a5"]

POLICIES: tuple[SasPolicy, ...] = ("upstream", "balanced")
FAMILIES: tuple[DeviceFamily, ...] = ("a2", "a5")
QLI_HEADS = 64


class _Planned:
    """What both specifications do with their columns of a plan row."""

    def plan_spec(self, policy: SasPolicy = "upstream") -> PlanSpec:
        """Return the columns of a plan row that describe this specification."""
        raise NotImplementedError

    @property
    def record_size(self) -> int:
        """Words of one core's record."""
        return self.plan_spec().record_size

    def plan_row(
        self,
        qsl_offset: int,
        lens_offset: int,
        out_offset: int,
        rows: int,
        policy: SasPolicy = "upstream",
        same_as: int = -1,
    ) -> tuple[int, ...]:
        """Return one row of the ``plans`` table of ``dsacp.kernels.sas_plan``; offsets in words."""
        spec = self.plan_spec(policy)
        return (qsl_offset, lens_offset, out_offset, rows, *spec, same_as, 0, 0)


@dataclass(frozen=True)
class SasSpec(_Planned):
    """Plan parameters of sparse-attention-shared-KV.

    Attributes:
        num_heads: query heads passed to the op: all of them under DSA-CP. A5: 64 or 128.
        device_family: "a2" (A2 and A3) or "a5" (Ascend950).
        num_cores: cube cores of the launch that reads the plan. A5 with 128 heads works in pairs
            of cores, so the count is even there.
        window_left: keys before the query token in the window, W-1 (DSpark: W+K-1).
        window_right: keys after it.
        cmp_ratio: 1 (window only), 4 or 128 raw tokens a compressed key.
        cmp_topk: compressed keys selected a query token, 0 for all. Upstream accepts 0, 512 and
            1024 only; any count is planned here, so that small models can be tested.

    Raises:
        LayoutError: a value is outside the op's checks (upstream U3).
    """

    num_heads: int
    device_family: DeviceFamily = "a2"
    num_cores: int = 24
    window_left: int = 127
    window_right: int = 0
    cmp_ratio: int = 1
    cmp_topk: int = 0

    def __post_init__(self) -> None:
        check_whole("num_heads", self.num_heads, 1)
        for name in ("window_left", "window_right", "cmp_topk"):
            check_whole(name, getattr(self, name), 0)
        _check_device(self.device_family, self.num_cores)
        if self.device_family == "a5" and self.num_heads not in {64, 128}:
            raise LayoutError(
                f"expected 64 or 128 heads on a5, found {self.num_heads}: its kernels have no "
                "other split; under DSA-CP pass all heads"
            )
        if self.paired and self.num_cores % 2:
            raise LayoutError(
                f"expected an even core count for 128 heads on a5 (cores work in pairs), found "
                f"{self.num_cores}: launch on {self.num_cores - 1} or {self.num_cores + 1}"
            )
        if self.cmp_ratio not in {1, 4, 128}:
            raise LayoutError(
                f"expected cmp_ratio 1, 4 or 128, found {self.cmp_ratio}: the attention op has no "
                "other compressed cache"
            )

    @property
    def paired(self) -> bool:
        """Whether cores 2c and 2c+1 share a range, 64 heads each."""
        return self.plan_spec().paired

    def plan_spec(self, policy: SasPolicy = "upstream") -> PlanSpec:
        """Return the columns of a plan row that describe this specification."""
        return PlanSpec(
            kind=0,
            num_heads=self.num_heads,
            family=FAMILIES.index(self.device_family),
            num_cores=self.num_cores,
            window_left=self.window_left,
            window_right=self.window_right,
            cmp_ratio=self.cmp_ratio,
            cmp_topk=self.cmp_topk,
            policy=_policy_index(policy),
        )


@dataclass(frozen=True)
class QliSpec(_Planned):
    """Plan parameters of the lightning indexer; a row is four query tokens (upstream U12, U13).

    Attributes:
        num_heads: indexer heads, 64.
        device_family: "a2" or "a5".
        num_cores: cube cores of the launch that reads the plan.
        cmp_ratio: raw tokens a key: a power of two up to 128; A5: 1, 4 or 128.

    Raises:
        LayoutError: a value is outside the op's checks.
    """

    num_heads: int = QLI_HEADS
    device_family: DeviceFamily = "a2"
    num_cores: int = 24
    cmp_ratio: int = 4

    def __post_init__(self) -> None:
        _check_device(self.device_family, self.num_cores)
        if self.num_heads != QLI_HEADS:
            raise LayoutError(f"expected {QLI_HEADS} indexer heads, found {self.num_heads}")
        known = (1, 4, 128) if self.device_family == "a5" else tuple(1 << k for k in range(8))
        if self.cmp_ratio not in known:
            raise LayoutError(
                f"expected cmp_ratio in {known} on {self.device_family}, found {self.cmp_ratio}"
            )

    @property
    def paired(self) -> bool:
        """Never: indexer cores work alone."""
        return False

    def plan_spec(self, policy: SasPolicy = "upstream") -> PlanSpec:
        """Return the columns of a plan row that describe this specification."""
        family = FAMILIES.index(self.device_family)
        return PlanSpec(
            1, self.num_heads, family, self.num_cores, 0, 0, self.cmp_ratio, 0,
            _policy_index(policy),
        )  # fmt: skip


def _policy_index(policy: str) -> int:
    if policy not in POLICIES:
        raise LayoutError(f"expected a policy in {POLICIES}, found {policy!r}")
    return POLICIES.index(policy)


def _check_device(family: str, num_cores: int) -> None:
    if family not in FAMILIES:
        raise LayoutError(f"expected a device family in {FAMILIES}, found {family!r}")
    do = f"the words hold {MAX_CORES} records; pass the cube cores of the launch"
    check_whole("num_cores", num_cores, 1, MAX_CORES, do)
