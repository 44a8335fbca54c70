"""The parts of an installed vllm-ascend that our builder calls or fills in, gathered once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dsacp.vllm.ascend.fill import SlotFormat
from dsacp.vllm.ascend.replay import ReplayNoOp, replay_of


@dataclass(frozen=True)
class Host:
    """Callables and classes of one vllm-ascend.

    Attributes:
        split: counts decodes and prefills from the host's CPU integers.
        tp_group: returns the tensor-parallel group.
        rope: module of RoPE tables and their proxy class.
        full_rope: full table of a compressed group.
        device: the device adaptor, which knows the slot format.
        req_class: per-request metadata dataclass.
        cp_class: context-parallel metadata dataclass.
        replay: what the draft path calls after a replay.
    """

    split: Callable[..., tuple[int, int, int, int]]
    tp_group: Callable[[], Any]
    rope: Any
    full_rope: Callable[[str], Any]
    device: Any
    req_class: type[Any]
    cp_class: type[Any]
    replay: ReplayNoOp

    @classmethod
    def of(cls, dsa_cp: Any, rope: Any) -> "Host":
        """Gather the parts from ``vllm_ascend``'s ``dsa_cp`` and ``rope_dsv4`` modules."""
        return cls(
            split=dsa_cp.split_decodes_and_prefills,
            tp_group=dsa_cp.get_tp_group,
            rope=rope,
            full_rope=dsa_cp.get_full_cos_and_sin_dsa,
            device=dsa_cp.DeviceOperator,
            req_class=dsa_cp.AscendDSAReqMetadata,
            cp_class=dsa_cp.DSACPMetadata,
            replay=replay_of(dsa_cp.AscendDSACPImpl),
        )

    def format_slots(self) -> SlotFormat:
        """Return the device's slot format."""
        formatter: SlotFormat = self.device.format_dsa_slot_mapping
        return formatter
