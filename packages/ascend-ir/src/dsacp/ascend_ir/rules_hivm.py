"""Rules for HIVM operations on buffers that the compiler's own pass for execution leaves."""

from dsacp.ascend_ir.elementwise import copy, elementwise, fill, generic, identity
from dsacp.ascend_ir.mlir import (
    Op,
    Scope,
    element_of,
    is_float,
    numbers,
    shape_of,
    width_of,
)
from dsacp.ascend_ir.rule import Rule
from dsacp.ascend_ir.rules_linalg import block_call

_FLOAT_COMPARES = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
_ROUNDING = {
    "rint": "roundeven",
    "round": "round",
    "floor": "floor",
    "ceil": "ceil",
    "trunc": "trunc",
}


def _block(op: Op, _: Scope) -> list[str]:
    return [block_call(op)]


def _copy(op: Op, _: Scope) -> list[str]:
    if len(op.operands) != 2:
        raise op.refuse("more than a source and a destination")
    return [copy(op.operands[0], op.types[0], op.operands[1], op.types[1], op.loc)]


def _store(op: Op, scope: Scope) -> list[str]:
    if op.property("atomic_kind", "#hivm.atomic_kind<none>") != "#hivm.atomic_kind<none>":
        raise op.refuse("an atomic kind")
    return _copy(op, scope)


def _load(op: Op, scope: Scope) -> list[str]:
    """Fill the whole local buffer where it says so, then copy its part."""
    groups = op.segments()
    if not groups:
        return _copy(op, scope)
    (source,), (out,), pad, left, right, condition = groups
    if any(scope.constant(op.operands[index]) != "0" for index in [*left, *right]):
        raise op.refuse("padding beside the part that is loaded")
    lines = []
    if pad and op.property("init_out_buffer", "false") == "true":
        whole = _root(op.operands[out], op.types[out], scope)
        line = fill(op.operands[pad[0]], op.types[pad[0]], *whole, op.loc)
        when = [f"scf.if {op.operands[index]} {{" for index in condition]
        lines += [*when, line, *(f"}}{op.loc}" for _ in when)]
    lines.append(
        copy(op.operands[source], op.types[source], op.operands[out], op.types[out], op.loc)
    )
    return lines


def _root(value: str, kind: str, scope: Scope) -> tuple[str, str]:
    made = scope.definitions.get(value)
    while made is not None and made.name == "memref.subview":
        value, kind = made.operands[0], made.types[0]
        made = scope.definitions.get(value)
    return value, kind


def _compare(op: Op, _: Scope) -> list[str]:
    mode = op.property("compare_mode", "#hivm.compare_mode<eq>").rpartition("<")[2].rstrip(">")
    kind = element_of(op.types[0])
    if is_float(kind):
        compare = f"arith.cmpf {_FLOAT_COMPARES[mode]}"
    else:
        compare = f"arith.cmpi {mode if mode in ('eq', 'ne') else 's' + mode}"
    return elementwise(op, lambda names: [f"%r = {compare}, {names[0]}, {names[1]} : {kind}"])


def _cast(op: Op, _: Scope) -> list[str]:
    source, target = element_of(op.types[0]), element_of(op.types[1])
    mode = op.property("round_mode", "#hivm.round_mode<rint>").rpartition("<")[2].rstrip(">")
    return elementwise(op, lambda names: _cast_lines(op, names[0], source, target, mode))


def _cast_lines(op: Op, value: str, source: str, target: str, mode: str) -> list[str]:
    to = f"{value} : {source} to {target}"
    if target == "i1":
        zero, compare = ("0.0", "cmpf une") if is_float(source) else ("0", "cmpi ne")
        return [
            f"%zero = arith.constant {zero} : {source}",
            f"%r = arith.{compare}, {value}, %zero : {source}",
        ]
    if is_float(source) and not is_float(target):
        if mode not in _ROUNDING:
            raise op.refuse(f"rounding {mode}")
        whole = f"%whole = math.{_ROUNDING[mode]} {value} : {source}"
        return [whole, f"%r = arith.fptosi %whole : {source} to {target}"]
    if source == target:
        return [f"%r = arith.bitcast {to}"]
    return [f"%r = arith.{_widening(source, target)} {to}"]


def _widening(source: str, target: str) -> str:
    """Return the operation of `arith` for a conversion that names no rounding."""
    wider = width_of(target) > width_of(source)
    if is_float(source):
        return "extf" if wider else "truncf"
    if is_float(target):
        return "uitofp" if source == "i1" else "sitofp"
    if wider:
        return "extui" if source == "i1" else "extsi"
    return "trunci"


class _Binary:
    """A rewriting into one operation of `arith`, by the kind of the elements."""

    def __init__(self, integers: str = "", floats: str = "") -> None:
        self._names = {False: integers, True: floats}

    def __call__(self, op: Op, _: Scope) -> list[str]:
        kind = element_of(op.types[-1])
        name = self._names[is_float(kind)]
        if not name:
            raise op.refuse(f"elements of {kind}")
        return elementwise(op, lambda names: [f"%r = arith.{name} {names[0]}, {names[1]} : {kind}"])


def _not(op: Op, _: Scope) -> list[str]:
    kind = element_of(op.types[-1])
    ones = "true" if kind == "i1" else f"-1 : {kind}"
    return elementwise(
        op,
        lambda names: [
            f"%ones = arith.constant {ones}",
            f"%r = arith.xori {names[0]}, %ones : {kind}",
        ],
    )


def _reduce(op: Op, scope: Scope) -> list[str]:
    how = op.property("arith").rpartition("<")[2].rstrip(">")
    kind = element_of(op.types[0])
    known = _reductions(kind)
    if how not in known or len(op.operands) != 2:
        raise op.refuse(f"reduction {how}")
    name, start = known[how]
    reduced, rank = set(numbers(op.property("reduce_dims"))), len(shape_of(op.types[0]))
    kept = len(shape_of(op.types[1])) == rank
    axes = [
        "0" if axis in reduced else f"d{axis}"
        for axis in range(rank)
        if kept or axis not in reduced
    ]
    dims = ", ".join(f"d{axis}" for axis in range(rank))
    loops = ", ".join('"reduction"' if axis in reduced else '"parallel"' for axis in range(rank))
    value = scope.fresh()
    out = op.operands[1], op.types[1]
    return [
        f"{value} = arith.constant {start} : {kind}{op.loc}",
        fill(value, kind, *out, op.loc),
        *generic(
            [identity(rank), f"affine_map<({dims}) -> ({', '.join(axes)})>"],
            loops,
            [(op.operands[0], op.types[0])],
            out,
            [f"%x: {kind}", f"%total: {kind}"],
            [f"%r = arith.{name} %total, %x : {kind}", f"linalg.yield %r : {kind}"],
            op.loc,
        ),
    ]


def _reductions(kind: str) -> dict[str, tuple[str, str]]:
    if is_float(kind):
        low, high = {
            "f32": ("0xFF800000", "0x7F800000"),
            "f16": ("0xFC00", "0x7C00"),
            "bf16": ("0xFF80", "0x7F80"),
        }[kind]
        sums = {"sum": ("addf", "0.0"), "prod": ("mulf", "1.0")}
        return {**sums, "max": ("maximumf", low), "min": ("minimumf", high)}
    top = 1 << (width_of(kind) - 1)
    return {
        "sum": ("addi", "0"),
        "max": ("maxsi", str(-top)),
        "min": ("minsi", str(top - 1)),
        "any": ("ori", "0"),
        "all": ("andi", "-1"),
        "ori": ("ori", "0"),
        "andi": ("andi", "-1"),
        "xori": ("xori", "0"),
    }


def _cumsum(op: Op, scope: Scope) -> list[str]:
    shape, kind = shape_of(op.types[0]), element_of(op.types[0])
    forwards = op.property("reverse", "false") == "false"
    if len(shape) != 1 or numbers(op.property("cum_dims")) != [0] or not forwards:
        raise op.refuse("another axis than the only one, or backwards")
    zero, low, one, high, lane, total, value, new, last = (scope.fresh() for _ in range(9))
    add, start = ("arith.addf", "0.0") if is_float(kind) else ("arith.addi", "0")
    (source, out), (kind_in, kind_out) = op.operands[:2], op.types[:2]
    lines = [
        f"{zero} = arith.constant {start} : {kind}",
        f"{low} = arith.constant 0 : index",
        f"{one} = arith.constant 1 : index",
        f"{high} = arith.constant {shape[0]} : index",
        f"{last} = scf.for {lane} = {low} to {high} step {one} "
        f"iter_args({total} = {zero}) -> ({kind}) {{",
        f"  {value} = memref.load {source}[{lane}] : {kind_in}",
        f"  {new} = {add} {total}, {value} : {kind}",
        f"  memref.store {new}, {out}[{lane}] : {kind_out}",
        f"  scf.yield {new} : {kind}",
        "}",
    ]
    return [line if line.endswith("{") else f"{line}{op.loc}" for line in lines]


def _matmul(op: Op, scope: Scope) -> list[str]:
    """C = A B, or C += A B: no tiles, no layout of the cube's own memory."""
    left, right, initial = op.operands[:3]
    if len(shape_of(op.types[0])) != 2:
        raise op.refuse("matrices in the cube's own layout")
    at = next(index for index in range(len(op.operands) - 1, 2, -1) if "memref<" in op.types[index])
    out, out_kind = op.operands[at], op.types[at]
    kind, wide = element_of(op.types[0]), element_of(out_kind)
    a_map = _matrix("d2, d0" if "a_transpose" in op.properties else "d0, d2")
    b_map = _matrix("d1, d2" if "b_transpose" in op.properties else "d2, d1")
    same, zero = kind == wide, scope.fresh()
    grow = "arith.extf" if is_float(kind) else "arith.extsi"
    if not is_float(wide):
        raise op.refuse(f"elements of {wide}")
    widen = [f"%{name}w = {grow} %{name} : {kind} to {wide}" for name in "xy" if not same]
    x, y = ("%x", "%y") if same else ("%xw", "%yw")
    body = [f"%p = arith.mulf {x}, {y} : {wide}", f"%r = arith.addf %total, %p : {wide}"]
    return [
        f"{zero} = arith.constant 0.0 : {wide}{op.loc}",
        f"scf.if {initial} {{",
        fill(zero, wide, out, out_kind, op.loc),
        f"}}{op.loc}",
        *generic(
            [a_map, b_map, _matrix("d0, d1")],
            '"parallel", "parallel", "reduction"',
            [(left, op.types[0]), (right, op.types[1])],
            (out, out_kind),
            [f"%x: {kind}", f"%y: {kind}", f"%total: {wide}"],
            [*widen, *body, f"linalg.yield %r : {wide}"],
            op.loc,
        ),
    ]


def _matrix(dims: str) -> str:
    return f"affine_map<(d0, d1, d2) -> ({dims})>"


_ITSELF = "element by element, in 32 and 64 bits as the type says"
HIVM_RULES = (
    Rule(
        "hivm.hir.get_block_idx", "the number of the program that runs, asked of the runner", _block
    ),
    Rule(
        "hivm.hir.load", "a fill of the buffer, where one is asked for, and a checked copy", _load
    ),
    Rule("hivm.hir.store", "a checked copy", _store),
    Rule("hivm.hir.copy", "a checked copy", _copy),
    Rule("hivm.hir.vcmp", f"a compare, {_ITSELF}", _compare),
    Rule(
        "hivm.hir.vcast", "a conversion with the rounding that is named, or to the nearest", _cast
    ),
    Rule("hivm.hir.vshl", f"a shift, {_ITSELF}", _Binary("shli")),
    Rule(
        "hivm.hir.vshr",
        "an arithmetic shift; `round` is what the compiler writes beside every one",
        _Binary("shrsi"),
    ),
    Rule("hivm.hir.vmod", f"a remainder, {_ITSELF}", _Binary("remsi", "remf")),
    Rule("hivm.hir.vdiv", "a division of floating-point numbers", _Binary(floats="divf")),
    Rule("hivm.hir.vnot", f"an exclusive or with ones, {_ITSELF}", _not),
    Rule("hivm.hir.vreduce", "a fill with the neutral element and a loop over the axes", _reduce),
    Rule("hivm.hir.vcumsum", "a loop of sums, lane by lane", _cumsum),
    Rule("hivm.hir.mmadL1", "a product of matrices in float32, in the order of k", _matmul),
)
"""For buffers, after the compiler's HIVM pipeline."""
