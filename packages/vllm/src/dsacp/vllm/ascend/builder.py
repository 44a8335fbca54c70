"""Our builder in place of ``AscendDSACPMetadataBuilder``, made from the installed class.

It returns the host's own metadata dataclasses, so the host's attention code runs unchanged.
"""

from functools import cache
from typing import Any

from torch import Tensor

from dsacp.core import BufferRegion
from dsacp.vllm.ascend.assemble import assemble
from dsacp.vllm.ascend.call import Call, count_kinds, fill, plan
from dsacp.vllm.ascend.host import Host
from dsacp.vllm.ascend.roles import FIRST, TARGET, Banks
from dsacp.vllm.ascend.rope import host_tables
from dsacp.vllm.ascend.runner_v2 import LATER, add_host_lengths, classify
from dsacp.vllm.ascend.settings import ascend_blockers
from dsacp.vllm.ascend.shapes import Shape, first_shape, later_shape, make_capacity
from dsacp.vllm.plugin import stand_aside
from dsacp.vllm.settings import Blocker

DEFAULT_BLOCK_SIZE = 128
"""What vllm-ascend assumes when a caller names none."""


@cache
def make_builder_class(stock: Any, host: Host) -> type[Any]:  # noqa: C901  one class
    """Return a subclass of the host's DSA-CP builder with persistent buffers.

    Args:
        stock: the installed ``AscendDSACPMetadataBuilder``.
        host: what else of the installed vllm-ascend is called.
    """

    class DsacpBuilder(stock):  # type: ignore[misc]
        """Metadata of every step, each field at one address for life.

        Attributes:
            dsacp_banks: the persistent buffers.
            dsacp_refused: why everything is left to the host, or None.
            dsacp_drafts: whether runner v2 asks this instance for draft steps.
        """

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            group = host.tp_group()
            self.dsacp_rank = (group.world_size, group.rank_in_group)
            reasons = list(ascend_blockers(self.vllm_config))
            self.dsacp_refused: str | None = "; ".join(map(str, reasons)) or None
            if reasons:
                stand_aside(reasons)
            self.dsacp_drafts = False
            self.dsacp_banks = _make_banks(self, group.world_size)

        def refuse(self, reason: Blocker) -> None:
            """Leave everything to the host from now on, and say why once."""
            self.dsacp_refused = str(reason)
            stand_aside([reason])

        def build(
            self,
            common_prefix_len: int,
            common_attn_metadata: Any,
            fast_build: Any = False,
            **kwargs: Any,
        ) -> Any:
            """Build the target's step, or the drafter's first pass, in place."""
            v2 = kwargs.get("common_ratio_to_sas_metadata") is None
            found = self._classify(common_attn_metadata, kwargs, v2)
            if isinstance(found, Blocker):
                self.refuse(found)
            if self.dsacp_refused is not None or isinstance(found, Blocker):
                return super().build(common_prefix_len, common_attn_metadata, fast_build, **kwargs)
            role, shape = found
            metadata = self._step(role, shape, common_attn_metadata, kwargs, v2)
            if v2 and role == LATER:
                add_host_lengths(metadata, common_attn_metadata)
            return metadata

        def build_for_drafting(
            self,
            common_attn_metadata: Any,
            draft_index: int,
            fast_build: bool = False,
            **kwargs: Any,
        ) -> Any:
            """Build draft step ``draft_index`` (1..K-1, or DSpark's one block) in place."""
            if self.dsacp_refused is not None or self.compressor_ratio > 1:
                return super().build_for_drafting(
                    common_attn_metadata, draft_index, fast_build, **kwargs
                )
            if common_attn_metadata.causal:
                shape = later_shape(common_attn_metadata, *self.dsacp_rank)
            else:
                shape = first_shape(common_attn_metadata, None, *self.dsacp_rank)
            return self._step(FIRST + draft_index, shape, common_attn_metadata, kwargs)

        def _classify(
            self, common: Any, kwargs: dict[str, Any], v2: bool
        ) -> tuple[int, Shape] | Blocker:
            real_reqs = kwargs.get("num_reqs_actual")
            if v2:
                return classify(common, self.dsacp_drafts, real_reqs, *self.dsacp_rank)
            # only the runner names its real requests; the proposer builds without
            drafting = self.speculative_config is not None and "num_reqs_actual" not in kwargs
            shape = first_shape(common, real_reqs, *self.dsacp_rank)
            return (FIRST if drafting else TARGET), shape

        def dsacp_regions(self) -> tuple[BufferRegion, ...]:
            """Return every persistent byte range, for ``dsacp.graph.GraphGuard``."""
            return self.dsacp_banks.regions()

        def dsacp_storages(self) -> tuple[Tensor, ...]:
            """Return the storages of ``dsacp_regions()``, guard words included."""
            return self.dsacp_banks.storages()

        def _step(
            self, role: int, shape: Shape, common: Any, kwargs: dict[str, Any], v2: bool = False
        ) -> Any:
            tables = host_tables(host.rope)
            shared = kwargs.get("common_ratio_to_sas_metadata")
            call = Call(
                stock=stock,
                builder=self,
                host=host,
                bank=self.dsacp_banks.pick(role, shape, tables, common.block_table_tensor),
                role=role,
                shape=shape,
                common=common,
                block_size=kwargs.get("block_size", DEFAULT_BLOCK_SIZE),
                shared={} if shared is None else shared,
                attn_state=kwargs.get("attn_state", common.attn_state),
                runner_v2=v2,
            )
            counts = count_kinds(call)
            table = fill(call)
            return assemble(call, table, counts, plan(call, table, counts[1] > 0))

    DsacpBuilder.__name__ = DsacpBuilder.__qualname__ = f"Dsacp{stock.__name__}"
    return DsacpBuilder


def _make_banks(builder: Any, tp_size: int) -> Banks:
    config = builder.vllm_config
    return Banks(
        getattr(builder, "cache_group_key", "dsa"),
        make_capacity(config, tp_size),
        2 if len(builder.slot_mapping_shape) > 1 else 1,
        builder.model_config.hf_config.sliding_window,
        getattr(config.speculative_config, "method", None) == "dspark",
        config,
        builder.device,
    )
