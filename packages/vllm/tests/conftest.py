"""Figures of the engines' runs, printed at the end so that a log holds them."""

from collections.abc import Callable, Iterator

import pytest

from dsacp.vllm.demo import describe
from dsacp.vllm.scenario import Outcome

FIGURES = pytest.StashKey[list[str]]()


def summarise(name: str, outcome: Outcome, plain: Outcome) -> Iterator[str]:
    """One line of answers; for our builders, one each of calls, attention and the guard."""
    lengths = ", ".join(str(len(tokens)) for tokens in outcome.tokens)
    yield f"{describe(name, outcome, plain)} | tokens a request: {lengths}"
    if outcome.reports:
        calls = ", ".join(f"{hook} x{count}" for hook, count in sorted(outcome.calls().items()))
        yield f"    {len(outcome.reports)} builders: {calls}"
        attention = ", ".join(f"{count} {what}" for what, count in outcome.attention().items())
        yield f"    attention: {attention or 'none'}"
        guard = ", ".join(f"{count} {what}" for what, count in outcome.guarded().items())
        yield f"    guard: {guard}, {len(outcome.violations)} violations"


@pytest.fixture(scope="session")
def figures(request: pytest.FixtureRequest) -> Callable[[str, Outcome, Outcome], None]:
    """Keep the figures of a run, next to those of plain decoding."""
    kept = request.config.stash.setdefault(FIGURES, [])

    def note(name: str, outcome: Outcome, plain: Outcome) -> None:
        kept.extend(summarise(name, outcome, plain))

    return note


def pytest_terminal_summary(terminalreporter, config) -> None:
    if lines := config.stash.get(FIGURES, []):
        terminalreporter.section("engines")
        for line in lines:
            terminalreporter.write_line(line)
