"""Text of `linalg` operations that stand for a compiler's own: maps, copies, fills, reductions."""

from collections.abc import Callable, Sequence

from dsacp.ascend_ir.mlir import Op, element_of, is_shaped, shape_of


def identity(rank: int) -> str:
    """Return the affine map of an operand that is read as it lies."""
    dims = ", ".join(f"d{index}" for index in range(rank))
    return f"affine_map<({dims}) -> ({dims})>"


def copy(source: str, kind: str, out: str, out_kind: str, loc: str) -> str:
    """Return a copy of a memref, element by element, so that each one is checked."""
    return f"linalg.copy ins({source} : {kind}) outs({out} : {out_kind}){loc}"


def fill(value: str, kind: str, out: str, out_kind: str, loc: str) -> str:
    """Return a fill of a memref with a scalar."""
    return f"linalg.fill ins({value} : {kind}) outs({out} : {out_kind}){loc}"


def elementwise(op: Op, body: Callable[[list[str]], Sequence[str]]) -> list[str]:
    """Return ``linalg.generic`` over the one output, the last operand of ``op``.

    Scalars are captured and axes of size 1 broadcast.

    Args:
        op: an operation of inputs and one output.
        body: gets the inputs' names and returns lines, the last of which defines ``%r``.
    """
    if op.property("transpose", "array<i64>") != "array<i64>":
        raise op.refuse("a transposed operand")
    inputs, outputs = _operands(op)
    out, out_kind = op.operands[outputs[0]], op.types[outputs[0]]
    shape, maps, reads, names, arguments = shape_of(out_kind), [], [], [], []
    for index in inputs:
        value, kind = op.operands[index], op.types[index]
        if not is_shaped(kind):
            names.append(value)
            continue
        maps.append(_broadcast(op, shape_of(kind), shape))
        reads.append((value, kind))
        names.append(f"%in{index}")
        arguments.append(f"%in{index}: {element_of(kind)}")
    arguments.append(f"%old: {element_of(out_kind)}")
    lines = [*body(names), f"linalg.yield %r : {element_of(out_kind)}"]
    maps.append(identity(len(shape)))
    loops = ", ".join(['"parallel"'] * len(shape))
    return generic(maps, loops, reads, (out, out_kind), arguments, lines, op.loc)


def generic(
    maps: Sequence[str],
    loops: str,
    reads: Sequence[tuple[str, str]],
    out: tuple[str, str],
    arguments: Sequence[str],
    lines: Sequence[str],
    loc: str,
) -> list[str]:
    """Return a ``linalg.generic`` with one output, every line of it at ``loc``."""
    values, kinds = (", ".join(part) for part in zip(*reads, strict=True)) if reads else ("", "")
    ins = f"ins({values} : {kinds}) " if reads else ""
    return [
        f"linalg.generic {{indexing_maps = [{', '.join(maps)}], iterator_types = [{loops}]}} "
        f"{ins}outs({out[0]} : {out[1]}) {{",
        f"^bb0({', '.join(arguments)}):",
        *(f"  {line}{loc}" for line in lines),
        f"}}{loc}",
    ]


def _operands(op: Op) -> tuple[list[int], list[int]]:
    segments = op.segments()
    if not segments:
        return list(range(len(op.operands) - 1)), [len(op.operands) - 1]
    inputs, outputs, *others = segments
    # a third segment is scratch memory of the instruction
    if len(outputs) != 1 or any(others):
        raise op.refuse("other operands than inputs and one output")
    return inputs, outputs


def _broadcast(op: Op, mine: Sequence[str], shape: Sequence[str]) -> str:
    if len(mine) != len(shape):
        raise op.refuse("operands of several ranks")
    dims = ", ".join(f"d{index}" for index in range(len(shape)))
    at = [
        "0" if own == "1" and whole != "1" else f"d{index}"
        for index, (own, whole) in enumerate(zip(mine, shape, strict=True))
    ]
    return f"affine_map<({dims}) -> ({', '.join(at)})>"
