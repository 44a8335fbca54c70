"""Is a plan safe for the consumer? (upstream U9)."""

from collections.abc import Sequence

from torch import Tensor

from dsacp.core import LayoutError
from dsacp.sas_metadata.codec import decode_sas, records
from dsacp.sas_metadata.costs import Batch, batch_costs, true_block_count
from dsacp.sas_metadata.spec import QliSpec, SasSpec


def check_legal(
    words: Tensor | Sequence[int],
    spec: SasSpec | QliSpec,
    query_start_loc: Batch,
    seq_lens: Batch,
) -> None:
    """Raise unless the attention kernels would compute every row exactly once, and return.

    Args:
        words: int32 [1024], the plan.
        spec: what the consumer is launched with.
        query_start_loc: int32 [B+1], the consumer's query starts.
        seq_lens: int32 [B], lengths; they matter for word 8 of paired cores only.

    Raises:
        LayoutError: an enable word is not 0 or 1, a KV cursor is not 0, ranges leave a gap, run
            backwards or do not end at (B, 0), a pair of cores disagrees, or word 8 is below the
            true block count (the cores of A5 would wait for each other forever).
    """
    cores = records(words, spec)
    for core, record in enumerate(cores):
        if record[0] not in (0, 1):
            raise LayoutError(
                f"expected enable word 0 or 1 of core {core}, found {record[0]}: the plan was "
                "never written, or for fewer cores"
            )
        if record[0] and (record[3] or record[6]):
            raise LayoutError(
                f"expected KV cursors 0 of core {core}, found {record[3]} and {record[6]}: rows "
                "must not be split along KV, nothing reduces the parts"
            )
    _check_cover(words, spec, query_start_loc, seq_lens)
    if isinstance(spec, SasSpec) and spec.paired:
        _check_pairs(cores, words, spec, query_start_loc, seq_lens)


def _check_cover(
    words: Tensor | Sequence[int],
    spec: SasSpec | QliSpec,
    query_start_loc: Batch,
    seq_lens: Batch,
) -> None:
    costs = batch_costs(spec, query_start_loc, seq_lens)
    ranges = decode_sas(words, spec)
    cursor = (0, 0)
    for index, item in enumerate(ranges):
        if item.core != index or item.start != cursor or item.end < cursor:
            raise LayoutError(
                f"expected the range of core {index} to start at {cursor} and go forward, found "
                f"core {item.core} from {item.start} to {item.end}: plan again for this batch"
            )
        cursor = item.end
        query_len = costs.query_lens[cursor[0]] if 0 <= cursor[0] < costs.count else 0
        if cursor[1] and not 0 < cursor[1] < costs.model.rows(max(query_len, 0)):
            raise LayoutError(
                f"core {item.core} ends at row {cursor[1]} of request {cursor[0]}, which has "
                f"{costs.model.rows(max(query_len, 0))} rows: plan again for this batch"
            )
    if cursor != (costs.count, 0):
        raise LayoutError(
            f"expected the last range to end at {(costs.count, 0)}, found {cursor}: rows after it "
            "would never be computed; plan again for this batch"
        )


def _check_pairs(
    cores: list[list[int]],
    words: Tensor | Sequence[int],
    spec: SasSpec,
    query_start_loc: Batch,
    seq_lens: Batch,
) -> None:
    needed = true_block_count(spec, decode_sas(words, spec), query_start_loc, seq_lens)
    for core in range(0, spec.num_cores, 2):
        if cores[core] != cores[core + 1]:
            raise LayoutError(
                f"expected equal records of cores {core} and {core + 1}, found {cores[core]} and "
                f"{cores[core + 1]}: the pair shares one range, 64 heads each"
            )
        if cores[core][8] < needed:
            raise LayoutError(
                f"expected word 8 of core {core} >= {needed} KV blocks, found {cores[core][8]}: "
                "the kernel would hang; refresh the plan, or plan for max_model_len"
            )
