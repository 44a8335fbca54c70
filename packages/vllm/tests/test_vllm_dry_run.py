"""Which batches are tried at start-up, and what is made of what fails. Needs no vLLM."""

import pytest

from dsacp.vllm.dry_run import (
    Sizes,
    Trial,
    dry_run,
    first_batches,
    guarded_trials,
    later_batches,
    request_counts,
)


def sizes(**changes: object) -> Sizes:
    values = {
        "max_num_seqs": 6,
        "max_num_batched_tokens": 64,
        "draft_tokens": 3,
        "tp_size": 4,
        "max_model_len": 256,
        "capture_sizes": (8, 16),
    }
    return Sizes(**{**values, **changes})


def test_extremes_are_among_the_batches() -> None:
    """One request, the most, the ranks' rounding, the largest capture, a long prefill, nobody."""
    assert request_counts(sizes()) == (1, 3, 4, 5, 6)
    names = [batch.name for batch in first_batches(sizes())]
    assert "a capture of 16 tokens" in names
    assert "a prefill of 64 tokens" in names
    assert "an idle step" in names
    assert {len(batch.queries) for batch in later_batches(sizes())} == {0, 1, 3, 4, 5, 6}
    assert {length for batch in later_batches(sizes()) for length in batch.lengths} == {1, 256}


@pytest.mark.parametrize("max_num_seqs", [1, 2, 6, 17])
@pytest.mark.parametrize("tp_size", [1, 3, 8])
@pytest.mark.parametrize("tokens", [8, 100, 4096])
@pytest.mark.parametrize("captures", [(), (4, 512)])
def test_no_batch_is_larger_than_the_engines(max_num_seqs, tp_size, tokens, captures) -> None:
    """One that no scheduler makes could be refused for no reason."""
    given = sizes(
        max_num_seqs=max_num_seqs,
        tp_size=tp_size,
        max_num_batched_tokens=tokens,
        capture_sizes=captures,
    )
    batches = [*first_batches(given), *later_batches(given)]
    for batch in batches:
        assert len(batch.queries) <= max_num_seqs
        assert sum(batch.queries) <= tokens
        assert all(query > 0 for query in batch.queries)
        for query, length in zip(batch.queries, batch.lengths, strict=True):
            assert query <= length <= given.max_model_len
    assert max(len(batch.queries) for batch in batches) == min(max_num_seqs, tokens)


def fails(text: str):
    def run() -> None:
        raise ValueError(text)

    return run


def test_every_reason_comes_out_once_with_all_that_it_met() -> None:
    reasons = dry_run([
        Trial("a", fails("x"), lambda: None),
        Trial("b", lambda: None, lambda: None),
        Trial("c", fails("x"), lambda: None),
        Trial("d", fails("y"), lambda: None),
    ])  # fmt: skip
    assert [reason.found for reason in reasons] == [
        "a dry run that fails for a, c (ValueError: x)",
        "a dry run that fails for d (ValueError: y)",
    ]


def test_what_the_framework_cannot_build_either_is_no_reason() -> None:
    assert dry_run([Trial("idle", fails("no rows"), fails("no rows"))]) == []


def test_trials_that_cannot_be_made_are_a_reason() -> None:
    (reason,) = guarded_trials(fails("no memory"))
    assert "cannot be made (ValueError('no memory'))" in reason.found
