"""The generic text form, and what is not understood in it."""

import pytest

from dsacp.ascend_ir import UnsupportedOpError
from dsacp.ascend_ir.checked import check_accesses
from dsacp.ascend_ir.lower import RULES, check_known
from dsacp.ascend_ir.mlir import Scope, element_of, numbers, parse, shape_of, split
from dsacp.ascend_ir.rule import apply

LOAD = (
    '    %4 = "hivm.hir.load"(%1, %2, %0) <{init_out_buffer = true, operandSegmentSizes = '
    "array<i32: 1, 1, 1, 0, 0, 0>, pad_mode = #hivm.padmode<PadValue>}> {mark = 1 : i64} : "
    "(memref<?xi32, strided<[1], offset: ?>>, memref<4x?xbf16>, i32) -> i1 loc(#loc7)"
)


def test_an_operation_is_taken_apart() -> None:
    op = parse(LOAD)
    assert op is not None
    assert (op.indent, op.result, op.name) == ("    ", "%4", "hivm.hir.load")
    assert op.operands == ["%1", "%2", "%0"]
    assert op.types == ["memref<?xi32, strided<[1], offset: ?>>", "memref<4x?xbf16>", "i32"]
    assert (op.result_types, op.loc) == ("i1", " loc(#loc7)")
    assert op.property("init_out_buffer") == "true"
    assert op.property("absent", "none") == "none"
    assert op.segments() == [[0], [1], [2], [], [], []]


def test_types_are_read() -> None:
    assert shape_of("memref<4x?xbf16, strided<[?, 1]>>") == ["4", "?"]
    assert element_of("memref<4x?xbf16, strided<[?, 1]>>") == "bf16"
    assert element_of("i32") == "i32"
    assert numbers("array<i64: 0, -2>") == [0, -2]
    assert split("memref<4xi32, affine_map<(d0) -> (d0)>>, f32") == [
        "memref<4xi32, affine_map<(d0) -> (d0)>>",
        "f32",
    ]


@pytest.mark.parametrize(
    "line", ["", "}", '  "scf.if"(%1) ({', "  ^bb0(%1: i32):", '#loc1 = loc("a.py":3:1)']
)
def test_what_is_no_operation_stays(line: str) -> None:
    assert parse(line) is None
    assert apply(line, RULES["hivm"], set()) == line + "\n"


def test_a_constant_is_known_where_it_is_one() -> None:
    scope = Scope()
    for line in (
        '%1 = "arith.constant"() <{value = -3 : i32}> : () -> i32',
        '%2 = "arith.addi"(%1, %1) : (i32, i32) -> i32',
    ):
        op = parse(line)
        assert op is not None
        scope.definitions[op.result] = op
    assert [scope.constant(name) for name in ("%1", "%2", "%3")] == ["-3", None, None]


def test_an_operation_of_a_foreign_dialect_is_named() -> None:
    check_known('  "linalg.fill"(%1, %2) ({')
    with pytest.raises(UnsupportedOpError, match=r"found hivm\.hir\.vsort in") as caught:
        check_known('  "hivm.hir.vsort"(%1, %2) : (memref<8xi32>, memref<8xi32>) -> ()')
    assert caught.value.op == "hivm.hir.vsort"


HEAD = "module {\n  llvm.func @kernel(%arg0: !llvm.ptr) {\n"
TAIL = '  }\n}\n#loc3 = loc("k.py":12:4)\n#loc4 = loc("k.py":20:1)\n'


def test_every_access_asks_first() -> None:
    checked = check_accesses(
        f"{HEAD}    %1 = llvm.load %arg0 : !llvm.ptr -> i16 loc(#loc3)\n"
        f"    llvm.store %1, %arg0 : i16, !llvm.ptr loc(callsite(#loc3 at #loc4))\n{TAIL}"
    )
    assert checked.sites == ["k.py:12", "k.py:12 (called at k.py:20)"]
    assert "llvm.call @ascend_ir_load(%arg0, %checked_0_size, %checked_0_site)" in checked.text
    assert "%1 = llvm.load %checked_0 : !llvm.ptr -> i16" in checked.text
    assert "llvm.call @ascend_ir_store(%arg0, %checked_1_size, %checked_1_site)" in checked.text
    assert "llvm.store %1, %checked_1 : i16, !llvm.ptr" in checked.text


def test_a_chain_of_calls_is_its_first_and_last_line() -> None:
    from dsacp.ascend_ir.checked import Places

    places = Places(f'{TAIL}#loc5 = loc("k.py":31:1)\n#loc6 = loc(callsite(#loc4 at #loc5))\n')
    assert places.name("callsite(#loc3 at #loc6)") == "k.py:12 (called at k.py:31)"
    assert places.name("callsite(#loc6 at #loc3)") == "k.py:20 (called at k.py:12)"
    assert places.name("fused[#loc9, #loc3]") == "k.py:12"
    assert places.name("unknown") == "an unknown line"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%2 = llvm.load %arg0 : !llvm.ptr -> vector<4xi32>", r"llvm\.load of vector"),
        ("%2 = llvm.load %arg0 : !llvm.ptr -> i128", r"llvm\.load of i128"),
        ("llvm.load volatile %arg0 : !llvm.ptr -> i32", r"llvm\.load in"),
        ("llvm.store %1, %arg0 {alignment = 16 : i64} : i32, !llvm.ptr", r"llvm\.store in"),
        ('"llvm.intr.memcpy"(%arg0, %arg0, %1) : (!llvm.ptr) -> ()', r"llvm\.intr\.memcpy in"),
        ("llvm.atomicrmw add %arg0, %1 monotonic : !llvm.ptr, i32", r"llvm\.atomicrmw in"),
        ("llvm.call @memcpy(%arg0) : (!llvm.ptr) -> ()", r"llvm\.call of memcpy"),
        ("llvm.call %9(%arg0) : (!llvm.ptr) -> ()", r"llvm\.call in"),
        ("%2 = llvm.mlir.addressof @table : !llvm.ptr", r"llvm\.mlir\.addressof in"),
        ("hivm.hir.vadd ins(%1, %2 : i32, i32)", r"hivm\.hir\.vadd in"),
        ("%3 = builtin.unrealized_conversion_cast %1 : i32 to index", r"builtin\.unreal"),
    ],
)
def test_an_access_that_would_not_ask_is_refused(line: str, message: str) -> None:
    with pytest.raises(UnsupportedOpError, match=message):
        check_accesses(f"{HEAD}    {line} loc(#loc3)\n{TAIL}")
