"""The generic text form of MLIR, an operation a line: what rules read and write.

``bishengir-opt --mlir-print-op-generic`` prints every dialect alike, so that one small parser
serves all: ``%r = "dialect.op"(%a, %b) <{properties}> {attributes} : (types) -> types loc(...)``.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from dsacp.ascend_ir.errors import UnsupportedOpError

_HEAD = re.compile(r'^(\s*)(?:(%[\w:#]+(?:, ?%[\w:#]+)*) = )?"([\w.]+)"\(')
_CLOSING = {"(": ")", "<": ">", "[": "]", "{": "}"}
_NAMES = re.compile(r'"([a-z_]\w*\.[\w.]+)"\(')


@dataclass(frozen=True)
class Op:
    """One operation without regions.

    Attributes:
        indent: the spaces before it.
        result: its results' text, empty without one.
        name: dialect and operation, "memref.copy".
        operands: names of values.
        properties: text between ``<{`` and ``}>``.
        types: types of the operands.
        result_types: text after the arrow.
        loc: text ``loc(...)``, or empty.
    """

    indent: str
    result: str
    name: str
    operands: list[str]
    properties: str
    types: list[str]
    result_types: str
    loc: str

    def property(self, name: str, default: str = "") -> str:
        """Return a property's text without its type, or ``default``."""
        for item in split(self.properties):
            key, _, value = item.partition(" = ")
            if key == name:
                return value.rpartition(" : ")[0] or value or "true"
        return default

    def segments(self) -> list[list[int]]:
        """Return the operands' positions, a list for each named group of operands."""
        sizes = numbers(self.property("operandSegmentSizes"))
        ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
        return [list(range(end - size, end)) for end, size in zip(ends, sizes, strict=True)]

    def refuse(self, why: str) -> UnsupportedOpError:
        """Return the error for a variant that no rule covers."""
        return UnsupportedOpError(self.name, f"with {why} ({self.properties})")


@dataclass
class Scope:
    """What was defined before a line, and names that no line has."""

    definitions: dict[str, Op] = field(default_factory=dict)
    _count: int = 0

    def fresh(self) -> str:
        """Return a name of a value that the text does not have."""
        self._count += 1
        return f"%ir_{self._count}"

    def constant(self, value: str) -> str | None:
        """Return the text of a constant's value, or None where it is computed."""
        op = self.definitions.get(value)
        return op.property("value") if op is not None and op.name == "arith.constant" else None


def parse(line: str) -> Op | None:
    """Read a line; None where it is no operation, or one with regions."""
    head = _HEAD.match(line)
    if head is None or line.rstrip().endswith("({"):
        return None
    operands, rest = _balanced(line, head.end() - 1)
    properties, rest = _optional(line, rest, " <{", "}>")
    _, rest = _optional(line, rest, " {", "}")
    if not line.startswith(" : (", rest):
        return None
    types, rest = _balanced(line, rest + 3)
    result_types, _, loc = line[rest + len(" -> ") :].rstrip("\n").rpartition(" loc(")
    if not loc or not result_types:
        result_types, loc = line[rest + len(" -> ") :].rstrip("\n"), ""
    return Op(
        indent=head[1],
        result=head[2] or "",
        name=head[3],
        operands=split(operands),
        properties=properties,
        types=split(types),
        result_types=result_types,
        loc=f" loc({loc}" if loc else "",
    )


def op_names(text: str) -> Iterator[tuple[str, str]]:
    """Yield (name, line) of every operation of a module in generic form."""
    for line in text.splitlines():
        for name in _NAMES.findall(line):
            yield name, line


def split(text: str) -> list[str]:
    """Split at commas that no bracket encloses; an arrow is no bracket."""
    parts, depth, last = [], 0, 0
    for index, letter in enumerate(text):
        arrow = letter == ">" and text[index - 1 : index] == "-"
        depth += letter in _CLOSING
        depth -= letter in _CLOSING.values() and not arrow
        if letter == "," and depth == 0:
            parts.append(text[last:index].strip())
            last = index + 1
    tail = text[last:].strip()
    return [*parts, tail] if tail else parts


def numbers(text: str) -> list[int]:
    """Return the integers of ``array<i64: 1, 2>``."""
    return [int(item) for item in re.findall(r"-?\d+", text.partition(":")[2])]


def shape_of(memref: str) -> list[str]:
    """Return the sizes of a memref or tensor type as text, "?" where they are not constant."""
    found = re.match(r"(?:memref|tensor)<([^,>]*)", memref)
    return found[1].split("x")[:-1] if found else []


def element_of(kind: str) -> str:
    """Return the element type of a memref or tensor, and a scalar's own."""
    found = re.match(r"(?:memref|tensor)<([^,>]*)", kind)
    return found[1].split("x")[-1] if found else kind


def is_shaped(kind: str) -> bool:
    """Tell whether a type is a memref or a tensor."""
    return kind.startswith(("memref<", "tensor<"))


def is_float(kind: str) -> bool:
    """Tell whether an element type is a floating-point one."""
    return kind.startswith(("f", "bf"))


def width_of(kind: str) -> int:
    """Return the bits of an element type."""
    found = re.search(r"\d+", kind)
    return int(found.group()) if found else 64


def _balanced(text: str, start: int) -> tuple[str, int]:
    """Return what the bracket at ``start`` encloses, and where the text goes on."""
    depth = 0
    opening, closing = text[start], _CLOSING[text[start]]
    for index in range(start, len(text)):
        depth += text[index] == opening
        depth -= text[index] == closing
        if depth == 0:
            return text[start + 1 : index], index + 1
    return text[start + 1 :], len(text)


def _optional(text: str, start: int, opening: str, closing: str) -> tuple[str, int]:
    if not text.startswith(opening, start):
        return "", start
    inside, end = _balanced(text, start + opening.index("{"))
    return inside, end + len(closing) - 1
