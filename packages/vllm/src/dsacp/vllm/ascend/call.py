"""One build of one bank: inputs filled in, plans made."""

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dsacp.vllm.ascend.banks import Bank
from dsacp.vllm.ascend.fill import fill_dspark, fill_rows, fill_slots, fill_table, fill_tokens
from dsacp.vllm.ascend.host import Host
from dsacp.vllm.ascend.one_token import fill_one_token, lengths_of_positions
from dsacp.vllm.ascend.plans import plan_attention, plan_indexer
from dsacp.vllm.ascend.roles import FIRST
from dsacp.vllm.ascend.shapes import Shape


@dataclass(frozen=True)
class Call:
    """What a build was asked for.

    Attributes:
        stock: the host's builder class.
        builder: ours.
        host: parts of the installed vllm-ascend.
        bank: where everything is written.
        role: the bank's role.
        shape: rows and tokens.
        common: the host's common attention metadata.
        block_size: slots of a page.
        shared: the step's dictionary, empty where the runner passes none.
        attn_state: the host's attention state.
        runner_v2: whether runner v2 calls; its lengths of draft steps are true, and padding shows
            in them alone.
    """

    stock: type[Any]
    builder: Any
    host: Host
    bank: Bank
    role: int
    shape: Shape
    common: Any
    block_size: int
    shared: MutableMapping[str, Any]
    attn_state: Any
    runner_v2: bool = False

    @property
    def drafting(self) -> bool:
        """Whether this is a step after the drafter's first pass, or DSpark's block."""
        return self.role > FIRST

    @property
    def block(self) -> bool:
        """Whether queries of a request see each other (DSpark)."""
        return self.drafting and not self.common.causal


@dataclass(frozen=True)
class Plans:
    """Work plans of a build.

    Attributes:
        sas: int32 [1024].
        qli: int32 [1024], or None where a group has no indexer.
        dspark: int32 [per_rank, 1, width] visible slots, or None.
        window_left: window that the attention call is told, None outside drafting.
    """

    sas: Tensor
    qli: Tensor | None
    dspark: Tensor | None
    window_left: int | None


def count_kinds(call: Call) -> tuple[int, int, int, int]:
    """Return decodes, prefills and their tokens, from integers of the host."""
    common = call.common
    if call.runner_v2 and call.bank.size.one_token:
        return common.num_reqs, 0, common.num_actual_tokens, 0
    # runner v2 does not say who prefills: then the query length alone decides
    unknown = getattr(common, "is_prefilling", None) is None
    return call.host.split(
        common,
        decode_threshold=call.builder.decode_threshold,
        treat_short_extends_as_decodes=unknown,
    )


def fill(call: Call) -> Tensor:
    """Bring rows and tokens up to date; returns the block table of the call's rows."""
    bank, shape, common = call.bank, call.shape, call.common
    slots = (common.slot_mapping, call.block_size, call.host.format_slots())
    if bank.size.one_token:
        starts, lengths = common.query_start_loc, common.seq_lens
        if not call.runner_v2:
            starts, lengths = lengths_of_positions(bank, shape, common.positions)
        fill_one_token(bank, shape, starts, lengths, call.block_size)
        fill_slots(bank, shape, *slots)
        return fill_table(bank, shape, common.block_table_tensor)
    fill_rows(bank, shape, common.query_start_loc, common.seq_lens, causal=not call.block)
    fill_tokens(bank, shape, common.positions, *slots)
    table: Tensor = common.block_table_tensor[: shape.rows]
    if shape.real_reqs < shape.rows:
        table[shape.real_reqs :].zero_()
    return table


def plan(call: Call, table: Tensor, has_prefill: bool) -> Plans:
    """Plan the rank's work and, for DSpark, what its queries see."""
    builder, bank, shape = call.builder, call.bank, call.shape
    starts = bank.local.query_start_loc[: shape.rows + 1]
    lengths = bank.local.seq_lens[: shape.rows]
    window = builder.model_config.hf_config.sliding_window
    drafts = builder.dsacp_banks.capacity.num_draft_tokens
    reach = window + drafts if call.block else window
    # a request has no more local queries than the rank has tokens, a padded one included
    longest = max(1, shape.shard.per_rank)
    sas = plan_attention(
        call.stock,
        builder,
        bank.words("sas"),
        starts,
        lengths,
        max_query_len=longest,
        has_prefill=has_prefill,
        shared=call.shared,
        window=reach,
    )
    qli = plan_indexer(
        call.stock,
        builder,
        bank.words("qli"),
        starts,
        lengths,
        max_query_len=longest,
        shared=call.shared,
    )
    seen = fill_dspark(bank, shape, table, window, drafts, call.block_size) if call.block else None
    return Plans(sas, qli, seen, reach - 1 if call.drafting else None)
