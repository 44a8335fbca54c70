"""One rewriting of an operation that no upstream pass takes, and how rules are applied."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dsacp.ascend_ir.mlir import Op, Scope, parse

Rewrite = Callable[[Op, Scope], Sequence[str]]
"""Returns the lines that take an operation's place."""


@dataclass(frozen=True)
class Rule:
    """A rewriting, and the reason why it changes no result and hides no access.

    Attributes:
        op: name of the operation.
        why: what stands in its place, and why that is the same.
        rewrite: makes the lines; raises UnsupportedOpError for variants that it does not cover.
    """

    op: str
    why: str
    rewrite: Rewrite


def apply(text: str, rules: Sequence[Rule], used: set[str]) -> str:
    """Rewrite a module in generic form, and add the names of rules that were needed to ``used``."""
    table = {rule.op: rule for rule in rules}
    scope, lines = Scope(), []
    for line in text.splitlines():
        op = parse(line)
        if op is None:
            lines.append(line)
            continue
        rule = table.get(op.name)
        if rule is None:
            lines.append(line)
        else:
            used.add(rule.op)
            lines += [f"{op.indent}{new}" for new in rule.rewrite(op, scope)]
        if op.result:
            # a name may return in a sibling region, where only the latest one is seen
            scope.definitions[op.result.partition(":")[0]] = op
    return "\n".join(lines) + "\n"


def dropped(_op: Op, _scope: Scope) -> list[str]:
    """Take an operation away."""
    return []
