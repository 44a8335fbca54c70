"""Rules for what triton-ascend writes into its `linalg` form beside upstream dialects."""

from dsacp.ascend_ir.elementwise import copy
from dsacp.ascend_ir.mlir import Op, Scope, is_float
from dsacp.ascend_ir.rule import Rule, dropped

_STRUCT = "!llvm.struct<(ptr, ptr, i64, array<1 x i64>, array<1 x i64>)>"


def _copy(op: Op, _: Scope) -> list[str]:
    return [copy(op.operands[0], op.types[0], op.operands[1], op.types[1], op.loc)]


def block_call(op: Op) -> str:
    """Return the question for the number of the program that runs."""
    return f"{op.result} = func.call @ascend_ir_block() : () -> i64{op.loc}"


def _call(op: Op, scope: Scope) -> list[str]:
    callee = op.property("callee")
    if callee == "@ascend_ir_block":
        return [block_call(op)]
    if not callee.startswith("@triton_cumsum"):
        raise op.refuse(f"a call of {callee}")
    source, axis, backwards = op.operands
    if scope.constant(axis) not in ("0", "false") or scope.constant(backwards) != "false":
        raise op.refuse(f"a call of {callee} along another axis than the first, or backwards")
    shape, _, kind = op.types[0].removeprefix("tensor<").removesuffix(">").rpartition("x")
    if not shape.isdigit():
        raise op.refuse(f"a call of {callee} for {op.types[0]}")
    return running_sum(op, source, int(shape), kind, scope)


def running_sum(op: Op, source: str, lanes: int, kind: str, scope: Scope) -> list[str]:
    """Return a loop that sums one lane after the other into a tensor named as the result."""
    zero, low, one, high, empty, loop = (scope.fresh() for _ in range(6))
    lane, made, total, value, new, put = (scope.fresh() for _ in range(6))
    add, start = ("arith.addf", "0.0") if is_float(kind) else ("arith.addi", "0")
    tensor = op.types[0]
    lines = [
        f"{zero} = arith.constant {start} : {kind}",
        f"{low} = arith.constant 0 : index",
        f"{one} = arith.constant 1 : index",
        f"{high} = arith.constant {lanes} : index",
        f"{empty} = tensor.empty() : {tensor}",
        f"{loop}:2 = scf.for {lane} = {low} to {high} step {one} "
        f"iter_args({made} = {empty}, {total} = {zero}) -> ({tensor}, {kind}) {{",
        f"  {value} = tensor.extract {source}[{lane}] : {tensor}",
        f"  {new} = {add} {total}, {value} : {kind}",
        f"  {put} = tensor.insert {new} into {made}[{lane}] : {tensor}",
        f"  scf.yield {put}, {new} : {tensor}, {kind}",
        "}",
        # the result's name has to stay: a cast to the same type carries it
        f"{op.result} = tensor.cast {loop}#0 : {tensor} to {tensor}",
    ]
    return [line if line.endswith("{") else f"{line}{op.loc}" for line in lines]


def _pointer(op: Op, scope: Scope) -> list[str]:
    if len(op.operands) != 2 or not op.result_types.startswith("memref<?x"):
        raise op.refuse("other operands than an address and a size")
    address, size = op.operands
    pointer, zero, one, length = (scope.fresh() for _ in range(4))
    lines = [
        f"{pointer} = llvm.inttoptr {address} : i64 to !llvm.ptr",
        f"{zero} = llvm.mlir.constant(0 : i64) : i64",
        f"{one} = llvm.mlir.constant(1 : i64) : i64",
        f"{length} = arith.index_cast {size} : index to i64",
    ]
    descriptor = scope.fresh()
    lines.append(f"{descriptor} = llvm.mlir.undef : {_STRUCT}")
    for value, at in ((pointer, "0"), (pointer, "1"), (zero, "2"), (length, "3, 0"), (one, "4, 0")):
        new = scope.fresh()
        lines.append(f"{new} = llvm.insertvalue {value}, {descriptor}[{at}] : {_STRUCT}")
        descriptor = new
    cast = f"{descriptor} : {_STRUCT} to {op.result_types}"
    lines.append(f"{op.result} = builtin.unrealized_conversion_cast {cast}")
    return [f"{line}{op.loc}" for line in lines]


_ALONE = "one program runs alone, so that there is nobody to wait for"
LINALG_RULES = (
    Rule(
        "memref.copy",
        "the same elements, by loops whose accesses are checked",
        _copy,
    ),
    Rule(
        "func.call",
        "a call of `@triton_cumsum` is a loop of sums, lane by lane; no other call is known",
        _call,
    ),
    Rule(
        "hivm.hir.pointer_cast",
        "the address itself: the size says what a pipeline may prefetch, not what may be read",
        _pointer,
    ),
    Rule("annotation.mark", "nothing: a hint for later stages, without a result", dropped),
    Rule("gpu.barrier", f"nothing: {_ALONE}", dropped),
    Rule("hivm.hir.debug", "nothing: it prints", dropped),
    Rule("hivm.hir.pipe_barrier", f"nothing: {_ALONE}", dropped),
    Rule("hivm.hir.sync_block", f"nothing: {_ALONE}", dropped),
    Rule("hivm.hir.sync_block_set", f"nothing: {_ALONE}", dropped),
    Rule("hivm.hir.sync_block_wait", f"nothing: {_ALONE}", dropped),
)
"""For both levels, before and after buffers are assigned."""
