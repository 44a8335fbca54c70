"""A plan as a table that a person can read."""

from collections.abc import Sequence

from torch import Tensor

from dsacp.sas_metadata.codec import CoreRange, decode_sas
from dsacp.sas_metadata.costs import Batch, batch_costs, lower_bound
from dsacp.sas_metadata.spec import QliSpec, SasSpec


def explain(
    words: Tensor | Sequence[int],
    spec: SasSpec | QliSpec,
    query_start_loc: Batch,
    seq_lens: Batch,
) -> str:
    """Return who computes what, at which estimated cost, and how well it is balanced.

    The balance figure is the mean cost of all cores (idle ones too) over the largest: 100 % is
    perfect. The bound is the least that the most loaded core of any plan can have, whatever the
    policy: the larger of the costliest row and the total shared evenly.

    Raises:
        LayoutError: the words or the batch have a wrong size.
    """
    costs = batch_costs(spec, query_start_loc, seq_lens)
    ranges = decode_sas(words, spec)
    available = spec.plan_spec().logical_cores
    loads = [costs.before(item.end) - costs.before(item.start) for item in ranges]
    largest, bound = max(loads, default=0), lower_bound(costs, available)
    name = "cores" if spec.paired else "core"
    cells = []
    for item, load in zip(ranges, loads, strict=True):
        label = f"{2 * item.core}+{2 * item.core + 1}" if spec.paired else str(item.core)
        rows = _row_count(item, [costs.model.rows(max(q, 0)) for q in costs.query_lens])
        share = load / costs.total if costs.total else 0.0
        cells.append((label, str(item.start), str(item.end), str(rows), str(load), f"{share:.1%}"))
    lines = [
        _title(spec, costs.count),
        *_table((name, "from", "to", "rows", "cost", "share"), cells),
    ]
    unit = "pairs" if spec.paired else "cores"
    mean = costs.total / available
    lines.append(f"{len(ranges)} of {available} {unit} work; total cost {costs.total}")
    if largest:
        reason = "its costliest row" if costs.peak == bound else "the total shared evenly"
        lines.append(
            f"balance {mean / largest:.1%} (mean {mean:.1f} of largest {largest}); no plan goes "
            f"below {bound} ({reason}): this one is {largest / bound:.2f} times that"
        )
    else:
        lines.append("nothing to attend to: one core covers all rows")
    return "\n".join(lines)


def _title(spec: SasSpec | QliSpec, requests: int) -> str:
    what = "indexer" if isinstance(spec, QliSpec) else "sparse attention"
    return f"{what}, {requests} requests, {spec}"


def _row_count(item: CoreRange, rows: list[int]) -> int:
    return sum(rows[item.start_req : item.end_req]) - item.start_row + item.end_row


def _table(header: tuple[str, ...], cells: Sequence[tuple[str, ...]]) -> list[str]:
    columns = list(zip(header, *cells, strict=True))
    widths = [max(len(text) for text in column) for column in columns]
    return [
        "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True))
        for line in [header, *cells]
    ]
