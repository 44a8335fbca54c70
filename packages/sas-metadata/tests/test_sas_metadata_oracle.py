"""Both planners against loops over every row."""

import pytest

from dsacp.sas_metadata import (
    SasSpec,
    batch_costs,
    check_legal,
    core_costs,
    decode_sas,
    lower_bound,
    row_costs,
    true_block_count,
)


@pytest.mark.parametrize("seed", range(8))
def test_upstream_words_equal_the_loops(batches, run_plan, seed):
    for batch in batches(seed, 300):
        assert run_plan(batch).tolist() == batch.words(), batch


@pytest.mark.parametrize("seed", range(8))
def test_balanced_is_legal_and_has_the_least_maximum(batches, run_plan, seed):
    for batch in batches(100 + seed, 150):
        words = run_plan(batch, "balanced")
        check_legal(words, batch.spec, batch.starts, batch.lens)
        ends = [item.end for item in decode_sas(words, batch.spec)]
        largest = max(batch.loads(ends))
        assert largest == batch.least_maximum(), batch
        assert largest <= max(batch.loads(batch.upstream())), batch


def test_costs_equal_the_loops(batches, run_plan):
    for batch in batches(7, 200):
        inputs = batch.starts, batch.lens
        expected = [[sum(blocks) for blocks in rows] for rows in batch.rows]
        assert row_costs(batch.spec, *inputs) == expected, batch
        costs = batch_costs(batch.spec, *inputs)
        assert costs.total == sum(batch.flat())
        assert costs.peak == max(batch.flat(), default=0)
        ranges = decode_sas(run_plan(batch), batch.spec)
        ends = [item.end for item in ranges]
        assert core_costs(batch.spec, ranges, *inputs) == batch.loads(ends)
        assert lower_bound(costs, batch.cores) <= max(batch.loads(ends))
        if isinstance(batch.spec, SasSpec):
            blocks = max(batch.loads(ends, blocks=True))
            assert true_block_count(batch.spec, ranges, *inputs) == blocks


def test_long_prefill_equals_the_loops(make_batch, run_plan):
    for spec in (
        SasSpec(64, cmp_ratio=4, cmp_topk=512),
        SasSpec(64, "a5", cmp_ratio=128),
        SasSpec(128, "a5", 36, window_right=9, cmp_ratio=4),
    ):
        batch = make_batch(spec, [0, 3000, 3001, 7000], [5000, 9999, 3999])
        assert run_plan(batch).tolist() == batch.words()
        ends = [item.end for item in decode_sas(run_plan(batch, "balanced"), spec)]
        assert max(batch.loads(ends)) == batch.least_maximum()
