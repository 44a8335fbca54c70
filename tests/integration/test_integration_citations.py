"""Citations: each names a fact of docs/upstream.md or a page that is in the repository."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FACTS = ROOT / "docs" / "upstream.md"
FOLDERS = ("benchmarks", "docs", "packages", "tests", "tools")
SUFFIXES = {".md", ".py", ".toml"}
NUMBER = re.compile(r"\bU(\d+)(?:-U(\d+))?\b")
CITATION = re.compile(r"\b[Uu]pstream U\d+(?:-U\d+)?(?:, U\d+(?:-U\d+)?)*\b")
PAGE = re.compile(r'\bdocs/([\w-]+\.md)(?:, "([^"]+)")?')
INVARIANT = re.compile(r"\bdocs/invariants\.md ((?:I\d)(?:(?:, |-)I\d)*)")
ABSENT = re.compile(
    r"\b[Ss]pec(?:ification)? (?:ascend|vllm|toolchain|incidents|device_ir|\d)|\(ascend \d"
    r"|\b[Dd]esign:? (?:\d|invariant)|\bA-\d+\.\d|\bB\.\d+\b"
    r"|\b(?:spec/\w+|design|redesign|incidents|device_ir)\.md"
)


@cache
def pages() -> tuple[tuple[str, str], ...]:
    """Return (path, text in one line) of every file that may cite, comment signs removed."""
    return tuple(_pages())


def _pages() -> Iterator[tuple[str, str]]:
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*")]
    for file in sorted([*files, *ROOT.glob("*"), ROOT / ".importlinter"]):
        path = file.relative_to(ROOT)
        hidden = any(part.startswith(".") for part in path.parts[:-1])
        if hidden or file in {FACTS, Path(__file__).resolve()} or not file.is_file():
            continue
        if file.suffix in SUFFIXES or file.name == ".importlinter":
            lines = (line.strip().removeprefix("#") for line in file.read_text().splitlines())
            yield str(path), " ".join(" ".join(lines).split())


def facts() -> dict[int, str]:
    """Return number -> text of every fact, in the order of the page."""
    blocks = re.split(r"^\*\*U(?=\d+\. )", FACTS.read_text(), flags=re.MULTILINE)[1:]
    numbered = [(int(block.split(".", 1)[0]), block.split("\n#")[0]) for block in blocks]
    assert [number for number, _ in numbered] == list(range(1, len(numbered) + 1))
    return dict(numbered)


def numbers(text: str) -> set[int]:
    """Return the facts that a text names, runs expanded."""
    runs = NUMBER.findall(text)
    return {n for low, high in runs for n in range(int(low), int(high or low) + 1)}


def headings(page: str) -> set[str]:
    """Return the headings of a page of docs/."""
    return set(re.findall(r"^#+ (.+)$", (ROOT / "docs" / page).read_text(), re.MULTILINE))


def test_citations_have_one_form_and_name_facts_that_exist() -> None:
    known = set(facts())
    for path, text in pages():
        formed = "; ".join(CITATION.findall(text))
        assert numbers(text) == numbers(formed), f"{path}: a number without 'upstream' before it"
        assert numbers(formed) <= known, f"{path}: {sorted(numbers(formed) - known)} are no facts"


def test_every_fact_is_cited_or_marked_as_background() -> None:
    cited = set().union(*(numbers(text) for _, text in pages()))
    idle = [n for n, text in facts().items() if n not in cited and "*(background)*" not in text]
    assert not idle, f"facts that nothing cites: {idle}"


def test_every_fact_says_where_it_was_seen() -> None:
    for number, text in facts().items():
        assert re.search(r"\s\*(Read|Compared|Measured)[:;.]", text), f"U{number} has no source"
        for other in numbers(text.split(".", 1)[1]):
            assert other in facts(), f"U{number} names U{other}"


def test_pages_headings_and_invariants_that_are_cited_exist() -> None:
    stated = set(re.findall(r"^\| (I\d) ", (ROOT / "docs/invariants.md").read_text(), re.MULTILINE))
    assert len(stated) == 5
    for path, text in pages():
        for page, heading in PAGE.findall(text):
            assert (ROOT / "docs" / page).is_file(), f"{path} cites docs/{page}"
            assert not heading or heading in headings(page), f"{path}: {page} has no {heading!r}"
        for invariants in INVARIANT.findall(text):
            assert set(re.findall(r"I\d", invariants)) <= stated, path


def test_no_document_outside_of_the_repository_is_cited() -> None:
    """74 comments named documents that a reader of the repository could not open."""
    found = [f"{path}: {match[0]}" for path, text in pages() for match in ABSENT.finditer(text)]
    assert not found


@pytest.mark.parametrize(
    ("text", "cites"),
    [
        ("(spec ascend 1.7)", True), ("Spec ascend 4.6: 4 requests", True), ("(design 5)", True),
        ("shapes of spec 3.3 and 4.6", True), ("(design: invariant I3)", True), ("(B.1 8)", True),
        ("the op ignores it (A-1.2)", True), ("(ascend 1.10)", True), ("see design.md", True),
        ("upstream U7, U9-U11", False), ("for spec in specs: 1.7", False), ("Sub.1", False),
        ("a design of 5 parts", False), ("vllm-ascend 0.26", False), ("A-Z", False),
    ],
)  # fmt: skip
def test_the_pattern_tells_citations_from_text(text: str, cites: bool) -> None:
    assert bool(ABSENT.search(text)) is cites


def test_runs_are_expanded() -> None:
    assert numbers("upstream U7, U9-U11") == {7, 9, 10, 11}
    assert CITATION.findall("by upstream U2, U4-U6, and U9")[0] == "upstream U2, U4-U6"
