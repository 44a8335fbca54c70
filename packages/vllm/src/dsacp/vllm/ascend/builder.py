"""Our builder in place of ``AscendDSACPMetadataBuilder``, made from the installed class.

It returns the host's own metadata dataclasses, so the host's attention code runs unchanged.
"""

from functools import cache
from typing import Any

from torch import Tensor

from dsacp.core import BufferRegion, LayoutError
from dsacp.vllm.ascend.assemble import assemble
from dsacp.vllm.ascend.call import Call, count_kinds, fill, plan
from dsacp.vllm.ascend.host import Host
from dsacp.vllm.ascend.roles import FIRST, TARGET, Banks
from dsacp.vllm.ascend.rope import host_tables
from dsacp.vllm.ascend.runner_v2 import LATER, add_host_lengths, classify
from dsacp.vllm.ascend.settings import ascend_blockers, remedy, unseen_blocker
from dsacp.vllm.ascend.shapes import Shape, first_shape, later_shape, make_capacity
from dsacp.vllm.aside import engine_of, listed
from dsacp.vllm.settings import Blocker

DEFAULT_BLOCK_SIZE = 128
"""What vllm-ascend assumes when a caller names none."""
CAPTURE = "dsacp_capture"
"""Keyword by which our capture entries tell ``build`` that a graph will hold its addresses."""


@cache
def make_builder_class(stock: Any, host: Host) -> type[Any]:
    """Return a subclass of the host's DSA-CP builder with persistent buffers.

    Args:
        stock: the installed ``AscendDSACPMetadataBuilder``.
        host: what else of the installed vllm-ascend is called.
    """
    members = {"dsacp_stock": stock, "dsacp_host": host, "__doc__": DsacpBuilder.__doc__}
    return type(f"Dsacp{stock.__name__}", (DsacpBuilder, stock), members)


class DsacpBuilder:
    """Metadata of every step, each field at one address for life.

    Attributes:
        dsacp_stock: the host's class, which is the other base.
        dsacp_host: parts of the installed vllm-ascend.
        dsacp_banks: the persistent buffers.
        dsacp_refused: why everything is left to the host, or None.
        dsacp_drafts: whether runner v2 asks this instance for draft steps.
        dsacp_seen: whether a proposer or speculator that we know was seen to hold this instance.
    """

    dsacp_stock: Any
    dsacp_host: Host
    dsacp_banks: Banks

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.dsacp_stock.__init__(self, *args, **kwargs)
        self.dsacp_refused: str | None = None
        self.dsacp_drafts = self.dsacp_seen = False
        self.dsacp_host.replay.watch(self)
        try:
            self._prepare()
        except Exception as error:  # an unknown host may fail in any way; it must run as without us
            self.refuse(Blocker(f"a builder unlike the known ones ({error!r})", remedy()))

    def _prepare(self) -> None:
        host: Any = self
        group = self.dsacp_host.tp_group()
        self.dsacp_rank = (group.world_size, group.rank_in_group)
        if reasons := list(ascend_blockers(host.vllm_config)):
            self.refuse(*reasons)
        self.dsacp_method = getattr(host.speculative_config, "method", None)
        self.dsacp_banks = _make_banks(host, group.world_size)

    def refuse(self, *reasons: Blocker) -> None:
        """Leave everything to the framework from now on, and say why in one line an engine."""
        self.dsacp_refused = listed(reasons)
        engine_of(getattr(self, "vllm_config", self)).stand_aside(list(reasons))

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: Any,
        fast_build: Any = False,
        **kwargs: Any,
    ) -> Any:
        """Build the target's step, or the drafter's first pass, in place."""
        capturing = kwargs.pop(CAPTURE, False)
        v2 = kwargs.get("common_ratio_to_sas_metadata") is None
        found = self._classify(common_attn_metadata, kwargs, v2) if self._serves else None
        if isinstance(found, Blocker):
            self.refuse(found)
        if found is None or isinstance(found, Blocker):
            return self.dsacp_stock.build(
                self, common_prefix_len, common_attn_metadata, fast_build, **kwargs
            )
        role, shape = found
        metadata = self._step(role, shape, common_attn_metadata, kwargs, capturing, v2)
        if v2 and role == LATER:
            add_host_lengths(metadata, common_attn_metadata)
        return metadata

    def build_for_graph_capture(self, common_attn_metadata: Any, *args: Any, **kwargs: Any) -> Any:
        """Build what a graph will hold (runner v1's proposer): a bank of its own is no way out."""
        if self._serves:
            kwargs[CAPTURE] = True
        return self.dsacp_stock.build_for_graph_capture(self, common_attn_metadata, *args, **kwargs)

    def build_for_cudagraph_capture(self, common_attn_metadata: Any) -> Any:
        """Build what a graph will hold (either runner's target)."""
        if not self._serves:
            return self.dsacp_stock.build_for_cudagraph_capture(self, common_attn_metadata)
        return self.build(0, common_attn_metadata, **{CAPTURE: True})

    def build_for_drafting(
        self,
        common_attn_metadata: Any,
        draft_index: int,
        fast_build: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Build draft step ``draft_index`` (1..K-1, or DSpark's one block) in place.

        Raises:
            LayoutError: the index is not in 1..K.
            CapacityError: a graph would hold more rows than the bank has.
        """
        host: Any = self
        if self._serves and (reason := self._draft_blocker(common_attn_metadata)):
            self.refuse(reason)
        if not self._serves or host.compressor_ratio > 1:
            return self.dsacp_stock.build_for_drafting(
                self, common_attn_metadata, draft_index, fast_build, **kwargs
            )
        drafts = self.dsacp_banks.capacity.num_draft_tokens
        if not 1 <= draft_index <= drafts:
            raise LayoutError(
                f"expected a draft index in 1..{drafts} (K), found {draft_index}: the drafter's "
                "first pass is build()"
            )
        block, common = self.dsacp_banks.block, common_attn_metadata
        if block:
            shape = first_shape(common, None, *self.dsacp_rank)
        else:
            shape = later_shape(common, *self.dsacp_rank)
        # only a capture describes a one-token step with more tokens a request (upstream U30)
        capturing = not block and common.max_query_len > 1
        return self._step(FIRST + draft_index, shape, common, kwargs, capturing)

    @property
    def _serves(self) -> bool:
        return self.dsacp_refused is None

    def _draft_blocker(self, common: Any) -> Blocker | None:
        if self.dsacp_banks.block:
            return None
        if not common.causal:
            return Blocker(
                f"a non-causal draft step of method {self.dsacp_method!r}", "use dspark for blocks"
            )
        return None if self.dsacp_seen else unseen_blocker("draft steps")

    def _classify(
        self, common: Any, kwargs: dict[str, Any], v2: bool
    ) -> tuple[int, Shape] | Blocker:
        real_reqs = kwargs.get("num_reqs_actual")
        speculates = self.dsacp_method is not None
        if v2:
            if speculates and not self.dsacp_banks.block and not self.dsacp_seen:
                return unseen_blocker("a step of runner v2")
            return classify(common, self.dsacp_drafts, real_reqs, *self.dsacp_rank)
        # only the runner names its real requests; the proposer builds without
        drafting = speculates and "num_reqs_actual" not in kwargs
        shape = first_shape(common, real_reqs, *self.dsacp_rank)
        return (FIRST if drafting else TARGET), shape

    def dsacp_regions(self) -> tuple[BufferRegion, ...]:
        """Return every persistent byte range, for ``dsacp.graph.GraphGuard``."""
        return self.dsacp_banks.regions()

    def dsacp_storages(self) -> tuple[Tensor, ...]:
        """Return the storages of ``dsacp_regions()``, guard words included."""
        return self.dsacp_banks.storages()

    def _step(
        self,
        role: int,
        shape: Shape,
        common: Any,
        kwargs: dict[str, Any],
        capturing: bool,
        v2: bool = False,
    ) -> Any:
        host = self.dsacp_host
        tables, table = host_tables(host.rope), common.block_table_tensor
        shared = kwargs.get("common_ratio_to_sas_metadata")
        call = Call(
            stock=self.dsacp_stock,
            builder=self,
            host=host,
            bank=self.dsacp_banks.pick(role, shape, tables, table.shape[1], capturing),
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
        metadata = assemble(call, table, counts, plan(call, table, counts[1] > 0))
        host.replay.serve()
        return metadata


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
