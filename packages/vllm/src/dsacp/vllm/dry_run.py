"""A configuration's extremes, tried at start-up: what fails here must not fail while serving.

Needs no vLLM: a caller says how a batch is built by us, and how by the framework's own builder.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from dsacp.vllm.settings import Blocker

REMEDY = "change that setting, or report this line; drafts are built by the framework meanwhile"


@dataclass(frozen=True)
class Sizes:
    """What bounds the batches of an engine.

    Attributes:
        max_num_seqs: requests of a step.
        max_num_batched_tokens: tokens of a step.
        draft_tokens: K.
        tp_size: ranks that share the tokens.
        max_model_len: longest request.
        capture_sizes: captured token counts.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    draft_tokens: int
    tp_size: int
    max_model_len: int
    capture_sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Batch:
    """One batch to try: query tokens and lengths of its requests."""

    name: str
    queries: tuple[int, ...]
    lengths: tuple[int, ...]


def request_counts(sizes: Sizes) -> tuple[int, ...]:
    """Return 1, the most, and what lies around the tensor-parallel size, where rows round up."""
    most = min(sizes.max_num_seqs, sizes.max_num_batched_tokens)
    near = (sizes.tp_size + offset for offset in (-1, 0, 1))
    last = most - most % sizes.tp_size + 1  # the fewest requests that need the last rows
    return tuple(sorted({count for count in (1, *near, last, most) if 1 <= count <= most}))


def first_batches(sizes: Sizes) -> tuple[Batch, ...]:
    """Return extremes of a first step: verified drafts, prefills, captured shapes, nobody."""
    most, longest = sizes.max_num_batched_tokens, sizes.max_model_len
    batches = [_verify(count, sizes) for count in request_counts(sizes)]
    captured = {max(sizes.capture_sizes, default=0), *sizes.capture_sizes[:1]}
    batches += [
        _spread(f"a capture of {size} tokens", size, sizes)
        for size in sorted(captured)
        if 0 < size <= most
    ]
    prompt = min(most, longest)
    batches.append(Batch(f"a prefill of {prompt} tokens", (prompt,), (prompt,)))
    batches.append(_spread(f"prefills of {most} tokens together", most, sizes))
    return (*batches, Batch("an idle step", (), ()))


def later_batches(sizes: Sizes) -> tuple[Batch, ...]:
    """Return extremes of a draft step of one token a request."""
    lengths = {"short": 1, "full": sizes.max_model_len}
    found = [
        Batch(f"{count} requests at length {length}", (1,) * count, (length,) * count)
        for count in request_counts(sizes)
        for length in lengths.values()
    ]
    return (*found, Batch("an idle draft step", (), ()))


def _verify(count: int, sizes: Sizes) -> Batch:
    each = min(sizes.draft_tokens + 1, max(1, sizes.max_num_batched_tokens // count))
    lengths = (sizes.max_model_len,) * count
    return Batch(f"{count} requests of {each} tokens", (each,) * count, lengths)


def _spread(name: str, tokens: int, sizes: Sizes) -> Batch:
    """Share tokens out among as many requests as they need, or as there may be."""
    fewest = math.ceil(tokens / sizes.max_model_len)
    count = min(max(fewest, tokens // (sizes.draft_tokens + 1), 1), sizes.max_num_seqs)
    each, more = divmod(tokens, count)
    queries = tuple(min(each + (index < more), sizes.max_model_len) for index in range(count))
    return Batch(name, queries, queries)


@dataclass(frozen=True)
class Trial:
    """One entry point with one batch.

    Attributes:
        name: what is tried.
        ours: builds it with our buffers.
        stock: builds it with the framework's own builder.
    """

    name: str
    ours: Callable[[], object]
    stock: Callable[[], object]


def dry_run(trials: Iterable[Trial]) -> list[Blocker]:
    """Return why a configuration cannot be served, every reason once.

    What the framework's own builder fails on too is no reason: it could not have served it.
    """
    failed: dict[str, list[str]] = {}
    for trial in trials:
        error = _error(trial.ours)
        if error is not None and _error(trial.stock) is None:
            failed.setdefault(f"{type(error).__name__}: {error}", []).append(trial.name)
    return [
        Blocker(f"a dry run that fails for {', '.join(names)} ({error})", REMEDY)
        for error, names in failed.items()
    ]


def _error(run: Callable[[], object]) -> Exception | None:
    try:
        run()
    except Exception as error:
        return error
    return None


def guarded_trials(make: Callable[[], Iterator[Trial]]) -> list[Blocker]:
    """Run the trials that ``make`` yields; what it raises itself is a reason too."""
    try:
        return dry_run(make())
    except Exception as error:
        return [Blocker(f"a dry run that cannot be made ({error!r})", REMEDY)]
