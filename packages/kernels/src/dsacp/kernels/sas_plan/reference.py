"""Work plans in plain integers on the CPU: the oracle of the Triton kernel."""

import itertools
from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from dsacp.kernels.sas_plan.costs import PlanSpec
from dsacp.kernels.sas_plan.planner import Cursor, largest_block_count, split_rows
from dsacp.kernels.sas_plan.table import PLAN_WORDS, check_plans


def encode(spec: PlanSpec, ends: Sequence[Cursor], block_count: int) -> "array[int]":
    """Return the 1024 words of a split (upstream U4); unused words are 0."""
    words = array("i", bytes(4 * PLAN_WORDS))
    size, copies = spec.record_size, 2 if spec.paired else 1
    start: Cursor = (0, 0)
    for core, end in enumerate(ends):
        record = array("i", (1, *start, 0, *end, 0))
        for copy in range(copies):
            at = size * (copies * core + copy)
            words[at : at + 7] = record
        start = end
    if spec.paired:
        # Idle pairs take part in the hand-shake too.
        for core in range(2 * spec.logical_cores):
            words[size * core + 8] = block_count
    return words


def plan_words(spec: PlanSpec, starts: Sequence[int], seq_lens: Sequence[int]) -> "array[int]":
    """Return the 1024 words of one plan."""
    query_lens = [after - before for before, after in itertools.pairwise(starts)]
    ends = split_rows(spec, query_lens, seq_lens)
    count = largest_block_count(spec, query_lens, seq_lens, ends) if spec.paired else 0
    return encode(spec, ends, count)


def sas_plan(query_start_loc: Tensor, seq_lens: Tensor, out: Tensor, plans: Tensor) -> None:
    """Write every plan of the table; see the package function."""
    table = plans.tolist()
    check_plans(table, query_start_loc, seq_lens, out)
    for row in table:
        starts_at, lens_at, out_at, rows = row[:4]
        target = out[out_at : out_at + PLAN_WORDS]
        if row[13] >= 0:
            source = table[row[13]][2]
            target.copy_(out[source : source + PLAN_WORDS])
            continue
        words = plan_words(
            PlanSpec(*row[4:13]),
            query_start_loc[starts_at : starts_at + rows + 1].tolist(),
            seq_lens[lens_at : lens_at + rows].tolist(),
        )
        target.copy_(torch.frombuffer(words, dtype=torch.int32))
