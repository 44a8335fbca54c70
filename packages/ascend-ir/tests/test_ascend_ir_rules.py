"""Every rewriting by itself: it computes what the operation means, and no access goes unseen.

Each case is run twice: as it should be, and with a source of half the size, which must be told of
as a fault of the argument or local buffer that the operation reads.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dsacp.ascend_ir import Launch, MemoryFaultError, Reached, UnsupportedOpError
from dsacp.ascend_ir.job import Job
from dsacp.ascend_ir.launch import POINTERS
from dsacp.ascend_ir.library import build, load
from dsacp.ascend_ir.lower import RULES, lower, lower_buffers
from dsacp.ascend_ir.tools import passes

pytestmark = pytest.mark.usefixtures("compilers")

X = torch.tensor([3, -7, 0, 2_000_000_000, 5, 31, -1, 16], dtype=torch.int32)
Y = torch.tensor([2, 3, 1, 1_000_000_000, 5, 4, 1, 0], dtype=torch.int32)
F = torch.tensor([1.5, -2.5, 0.5, 3.0, -0.0, 100.25, 2.5, -7.75])
NAMES = {torch.int32: "i32", torch.float32: "f32", torch.bfloat16: "bf16", torch.int64: "i64"}


@dataclass(frozen=True)
class Case:
    """One operation on local buffers: inputs of 8 words, an output, and what it should hold."""

    op: str
    properties: str
    inputs: tuple[torch.Tensor, ...]
    expected: torch.Tensor
    mask: bool = False


def binary(name, x, y, expected, properties="", mask=False):
    common = (
        "broadcast = array<i64>, operandSegmentSizes = array<i32: 2, {}>, transpose = array<i64>"
    )
    sizes = "1" if name in ("vcmp", "vmod") else "1, 0"
    return Case(f"hivm.hir.{name}", properties + common.format(sizes), (x, y), expected, mask)


def compare(mode, x, y, expected):
    mark = f"compare_mode = #hivm.compare_mode<{mode}>, "
    return binary("vcmp", x, y, expected, mark, mask=True)


def unary(name, x, expected, properties=""):
    common = (
        "broadcast = array<i64>, operandSegmentSizes = array<i32: 1, 1, 0>, transpose = array<i64>"
    )
    return Case(f"hivm.hir.{name}", properties + common, (x,), expected)


SMALL = torch.tensor([1, 2, 3, 4, 5, 6, 7, 8], dtype=torch.int32)
CASES = {
    "vcmp lt": compare("lt", X, Y, X < Y),
    "vcmp eq": compare("eq", X, Y, X == Y),
    "vcmp ne float": compare("ne", F, F.flip(0), F.flip(0) != F),
    "vshl": binary("vshl", X, SMALL, X << SMALL),
    "vnot": unary("vnot", X, ~X),
    "vmod": binary("vmod", X, SMALL, torch.fmod(X, SMALL)),
    "vdiv float": binary("vdiv", F, F + 200, F / (F + 200)),
    "vmod float": binary("vmod", F, F + 200, torch.fmod(F, F + 200)),
}


def body(case: Case, short: bool) -> str:
    """Load inputs, run the operation, widen a mask and store."""
    lines, names, kinds = [], [], []
    for index, value in enumerate(case.inputs):
        kind = NAMES[value.dtype]
        size = 4 if short and index == 0 else 8
        lines += [
            f"%a{index} = memref.reinterpret_cast %x{index} to offset: [0], sizes: [{size}], "
            f"strides: [1] : memref<?x{kind}> to memref<{size}x{kind}, strided<[1]>>",
            f"%l{index} = memref.alloc() : memref<{size}x{kind}>",
            f"memref.copy %a{index}, %l{index} : memref<{size}x{kind}, strided<[1]>> to "
            f"memref<{size}x{kind}>",
            # half of a buffer, named as a whole one
            f"%w{index} = memref.reinterpret_cast %l{index} to offset: [0], sizes: [8], "
            f"strides: [1] : memref<{size}x{kind}> to memref<8x{kind}>",
        ]
        names.append(f"%w{index}")
        kinds.append(f"memref<8x{kind}>")
    out = "i1" if case.mask else NAMES[case.expected.dtype]
    lines.append(f"%r = memref.alloc() : memref<8x{out}>")
    operands, types = ", ".join([*names, "%r"]), ", ".join([*kinds, f"memref<8x{out}>"])
    lines.append(f'"{case.op}"({operands}) <{{{case.properties}}}> : ({types}) -> ()')
    return "\n".join([*lines, *store(out)])


def store(kind: str) -> list[str]:
    wide = "i32" if kind == "i1" else kind
    grow = "%g = arith.extui %v : i1 to i32" if kind == "i1" else ""
    value = "%g" if kind == "i1" else "%v"
    return [
        "%c0 = arith.constant 0 : index",
        "%c1 = arith.constant 1 : index",
        "%c8 = arith.constant 8 : index",
        "scf.for %i = %c0 to %c8 step %c1 {",
        f"%v = memref.load %r[%i] : memref<8x{kind}>",
        grow,
        f"memref.store {value}, %out[%i] : memref<?x{wide}>",
        "}",
    ]


def module(lines: str, tensors: dict[str, torch.Tensor], level: str) -> str:
    start = "%ffts: i64, " if level == "hivm" else ""
    arguments = ", ".join(f"%{n}: memref<?x{NAMES[t.dtype]}>" for n, t in tensors.items())
    ids = 3 if level == "hivm" else 6
    grid = ", ".join(f"%n{index}: i32" for index in range(ids))
    return (
        f"module {{\nfunc.func @kernel({start}%lock: memref<?xi8>, %work: memref<?xi8>, "
        f"{arguments}, {grid}) attributes {{SyncBlockLockArgIdx = 0 : i64}} {{\n"
        f"{lines}\nreturn\n}}\n}}\n"
    )


def run(lines, tensors, level, folder, grid=1, whole=False, reach=None):
    """Run a kernel's body; ``whole`` goes through all passes, else it is on buffers already."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    text = module(lines, tensors, level)
    if whole:
        lowered = lower(text, level, "Ascend910B3", folder)
    else:
        (folder / "in.mlir").write_text(text)
        plain = passes("parsing", folder / "in.mlir", folder / "g.mlir", (), generic=True)
        lowered = lower_buffers(plain, level, folder, set())
    build(lowered, "kernel", folder)
    kernel = SimpleNamespace(fn=SimpleNamespace(__name__="kernel"))
    signature = {name: POINTERS[tensor.dtype] for name, tensor in tensors.items()}
    launch = Launch(kernel, signature, {})
    library = load(folder)
    Job(level, "forward", reach, launch, tensors, (grid, 1, 1), library).run_guarded("end")
    return library.rewrites


def check(case: Case, folder: Path) -> None:
    tensors = {f"x{index}": value for index, value in enumerate(case.inputs)}
    out = torch.zeros(8, dtype=torch.int32 if case.mask else case.expected.dtype)
    used = run(body(case, False), {**tensors, "out": out}, "hivm", folder / "right")
    assert case.op in used
    assert torch.equal(out, case.expected.to(out.dtype))
    before = out.clone()
    with pytest.raises(MemoryFaultError, match="loads a local buffer"):
        run(body(case, True), {**tensors, "out": out}, "hivm", folder / "short")
    assert torch.equal(out, before)


@pytest.mark.parametrize("name", CASES)
def test_an_elementwise_operation(name: str, tmp_path: Path) -> None:
    check(CASES[name], tmp_path)


@pytest.mark.parametrize(
    ("source", "target", "mode", "expected"),
    [
        (F, torch.int32, "rint", [2, -2, 0, 3, 0, 100, 2, -8]),
        (F, torch.int32, "trunc", [1, -2, 0, 3, 0, 100, 2, -7]),
        (F, torch.int32, "floor", [1, -3, 0, 3, 0, 100, 2, -8]),
        (X, torch.float32, "rint", X.float()),
        (X, torch.int64, "rint", X.long()),
        (F, torch.bfloat16, "rint", F.bfloat16()),
    ],
)
def test_a_conversion(source, target, mode, expected, tmp_path: Path) -> None:
    case = unary(
        "vcast",
        source,
        torch.as_tensor(expected, dtype=target),
        f"round_mode = #hivm.round_mode<{mode}>, ",
    )
    check(case, tmp_path)


def test_a_shift_to_the_right_keeps_the_sign(tmp_path: Path) -> None:
    check(binary("vshr", X, SMALL, X >> SMALL, "round = true, "), tmp_path)


@pytest.mark.parametrize(
    ("how", "x", "expected"),
    [
        ("sum", X, X.sum(dtype=torch.int32)),
        ("max", X, X.max()),
        ("min", X, X.min()),
        ("sum", F, F.sum()),
        ("max", F, F.max()),
        ("min", F, F.min()),
    ],
)
def test_a_reduction(how: str, x, expected, tmp_path: Path) -> None:
    kind = NAMES[x.dtype]
    for size in (8, 4):
        lines = f"""
        %a = memref.reinterpret_cast %x to offset: [0], sizes: [{size}], strides: [1] :
            memref<?x{kind}> to memref<{size}x{kind}, strided<[1]>>
        %l = memref.alloc() : memref<{size}x{kind}>
        memref.copy %a, %l : memref<{size}x{kind}, strided<[1]>> to memref<{size}x{kind}>
        %w = memref.reinterpret_cast %l to offset: [0], sizes: [8], strides: [1] :
            memref<{size}x{kind}> to memref<8x{kind}>
        %r = memref.alloc() : memref<1x{kind}>
        hivm.hir.vreduce <{how}> ins(%w : memref<8x{kind}>) outs(%r : memref<1x{kind}>)
            reduce_dims = [0]
        %c0 = arith.constant 0 : index
        %v = memref.load %r[%c0] : memref<1x{kind}>
        memref.store %v, %out[%c0] : memref<?x{kind}>"""
        out = torch.zeros(1, dtype=x.dtype)
        tensors = {"x": x, "out": out}
        if size == 8:
            assert "hivm.hir.vreduce" in run(lines, tensors, "hivm", tmp_path / "right")
            assert out[0] == expected
        else:
            with pytest.raises(MemoryFaultError, match="loads a local buffer"):
                run(lines, tensors, "hivm", tmp_path / "short")


@pytest.mark.parametrize("x", [SMALL, F], ids=["int", "float"])
def test_a_running_sum_on_buffers(x, tmp_path: Path) -> None:
    properties = "cum_dims = array<i64: 0>, reverse = false"
    case = Case("hivm.hir.vcumsum", properties, (x,), x.cumsum(0).to(x.dtype))
    check(case, tmp_path)


def test_a_product_of_matrices(tmp_path: Path) -> None:
    a, b = torch.arange(6.0).view(2, 3) - 2, torch.arange(12.0).view(3, 4) * 0.5
    for rows in (2, 1):
        lines = f"""
        %l = memref.alloc() : memref<{rows}x3xf32>
        %a = memref.reinterpret_cast %x to offset: [0], sizes: [{rows}, 3], strides: [3, 1] :
            memref<?xf32> to memref<{rows}x3xf32, strided<[3, 1]>>
        memref.copy %a, %l : memref<{rows}x3xf32, strided<[3, 1]>> to memref<{rows}x3xf32>
        %w = memref.reinterpret_cast %l to offset: [0], sizes: [2, 3], strides: [3, 1] :
            memref<{rows}x3xf32> to memref<2x3xf32>
        %b = memref.reinterpret_cast %y to offset: [0], sizes: [3, 4], strides: [4, 1] :
            memref<?xf32> to memref<3x4xf32, strided<[4, 1]>>
        %m = memref.alloc() : memref<3x4xf32>
        memref.copy %b, %m : memref<3x4xf32, strided<[4, 1]>> to memref<3x4xf32>
        %c = memref.alloc() : memref<2x4xf32>
        %first = arith.constant true
        %two = arith.constant 2 : index
        %three = arith.constant 3 : index
        %four = arith.constant 4 : index
        hivm.hir.mmadL1 ins(%w, %m, %first, %two, %three, %four : memref<2x3xf32>, memref<3x4xf32>,
            i1, index, index, index) outs(%c : memref<2x4xf32>)
        %o = memref.reinterpret_cast %out to offset: [0], sizes: [2, 4], strides: [4, 1] :
            memref<?xf32> to memref<2x4xf32, strided<[4, 1]>>
        memref.copy %c, %o : memref<2x4xf32> to memref<2x4xf32, strided<[4, 1]>>"""
        out = torch.zeros(2, 4)
        tensors = {"x": a, "y": b, "out": out}
        if rows == 2:
            assert "hivm.hir.mmadL1" in run(lines, tensors, "hivm", tmp_path / "right")
            assert torch.equal(out, a @ b)
        else:
            with pytest.raises(MemoryFaultError, match="loads a local buffer"):
                run(lines, tensors, "hivm", tmp_path / "short")


COPY = """
%a = memref.reinterpret_cast %x to offset: [0], sizes: [8], strides: [1] :
    memref<?xi32> to memref<8xi32, strided<[1]>>
%l = memref.alloc() : memref<8xi32>
{load}
%o = memref.reinterpret_cast %out to offset: [0], sizes: [8], strides: [1] :
    memref<?xi32> to memref<8xi32, strided<[1]>>
{store}
"""
KINDS = "(%a : memref<8xi32, strided<[1]>>) outs(%l : memref<8xi32>)"
BACK = "(%l : memref<8xi32>) outs(%o : memref<8xi32, strided<[1]>>)"
PLAIN = (
    "memref.copy %a, %l : memref<8xi32, strided<[1]>> to memref<8xi32>",
    "memref.copy %l, %o : memref<8xi32> to memref<8xi32, strided<[1]>>",
)


@pytest.mark.parametrize(
    ("level", "load_line", "store_line", "rule"),
    [
        ("linalg", *PLAIN, "memref.copy"),
        ("hivm", *PLAIN, "memref.copy"),
        ("hivm", f"hivm.hir.load ins{KINDS}", PLAIN[1], "hivm.hir.load"),
        ("hivm", PLAIN[0], f"hivm.hir.store ins{BACK}", "hivm.hir.store"),
        ("hivm", f"hivm.hir.copy ins{KINDS}", PLAIN[1], "hivm.hir.copy"),
    ],
)
def test_copies_are_checked_at_both_sides(
    level: str, load_line: str, store_line: str, rule: str, tmp_path: Path
) -> None:
    lines = COPY.format(load=load_line, store=store_line)
    out = torch.zeros_like(X)
    assert rule in run(lines, {"x": X, "out": out}, level, tmp_path / "right")
    assert torch.equal(out, X)
    with pytest.raises(MemoryFaultError, match="1 loads x, 4 bytes after it"):
        run(lines, {"x": X[:7], "out": out}, level, tmp_path / "right")
    with pytest.raises(MemoryFaultError, match="2 stores out, 4 to 8 bytes after it"):
        run(lines, {"x": X, "out": out[:6]}, level, tmp_path / "right")


@pytest.mark.parametrize(("condition", "rest"), [("%yes", -9), ("%no", None)])
def test_a_load_pads_its_whole_buffer_where_it_says_so(condition, rest, tmp_path: Path) -> None:
    load_line = f"""
    %pad = arith.constant -9 : i32
    %none = arith.constant 0 : index
    %yes = arith.constant true
    %no = arith.constant false
    %two = arith.constant 2 : i32
    %minus = arith.constant -2 : i32
    linalg.fill ins(%minus : i32) outs(%l : memref<8xi32>)
    %s = memref.subview %a[0] [3] [1] :
        memref<8xi32, strided<[1]>> to memref<3xi32, strided<[1]>>
    %t = memref.subview %l[0] [3] [1] : memref<8xi32> to memref<3xi32, strided<[1]>>
    "hivm.hir.load"(%s, %t, %pad, %none, {condition}) <{{init_out_buffer = true,
        may_implicit_transpose_with_last_axis = false,
        operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1>,
        pad_mode = #hivm.padmode<PadValue>}}> : (memref<3xi32, strided<[1]>>,
        memref<3xi32, strided<[1]>>, i32, index, i1) -> ()"""
    out = torch.zeros_like(X)
    lines = COPY.format(load=load_line, store=PLAIN[1])
    run(lines, {"x": X[:3], "out": out}, "hivm", tmp_path / "right")
    assert out.tolist() == [*X[:3].tolist(), *[-2 if rest is None else rest] * 5]
    with pytest.raises(MemoryFaultError, match="1 loads x, 4 bytes after it"):
        run(lines, {"x": X[:2], "out": out}, "hivm", tmp_path / "right")


def test_a_program_asks_for_its_number(tmp_path: Path) -> None:
    lines = """
    %b = hivm.hir.get_block_idx -> i64
    %i = arith.index_cast %b : i64 to index
    %v = arith.trunci %b : i64 to i32
    memref.store %v, %out[%i] : memref<?xi32>"""
    out = torch.full((5,), -1, dtype=torch.int32)
    used = run(lines, {"out": out}, "hivm", tmp_path / "right", grid=5)
    assert "hivm.hir.get_block_idx" in used
    assert out.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(MemoryFaultError, match=r"1 stores out.*by program \(5, 0, 0\)"):
        run(lines, {"out": out}, "hivm", tmp_path / "right", grid=6)


CUMSUM = """
%a = memref.reinterpret_cast %x to offset: [0], sizes: [8], strides: [1] :
    memref<?xi32> to memref<8xi32, strided<[1]>>
%l = memref.alloc() : memref<8xi32>
memref.copy %a, %l : memref<8xi32, strided<[1]>> to memref<8xi32>
%t = bufferization.to_tensor %l restrict writable : memref<8xi32>
%axis = arith.constant 0 : i32
%back = arith.constant false
%s = func.call @triton_cumsum_0(%t, %axis, %back) : (tensor<8xi32>, i32, i1) -> tensor<8xi32>
%o = memref.reinterpret_cast %out to offset: [0], sizes: [8], strides: [1] :
    memref<?xi32> to memref<8xi32, strided<[1]>>
bufferization.materialize_in_destination %s in writable %o :
    (tensor<8xi32>, memref<8xi32, strided<[1]>>) -> ()
return
}
func.func private @triton_cumsum_0(tensor<8xi32>, i32, i1) -> tensor<8xi32>
func.func private @last() {
"""


def test_a_running_sum_of_triton(tmp_path: Path) -> None:
    out = torch.zeros_like(SMALL)
    used = run(CUMSUM, {"x": SMALL, "out": out}, "linalg", tmp_path / "right", whole=True)
    assert "func.call" in used
    assert torch.equal(out, SMALL.cumsum(0).int())
    with pytest.raises(MemoryFaultError, match="1 loads x, 4 bytes after it"):
        run(CUMSUM, {"x": SMALL[:7], "out": out}, "linalg", tmp_path / "right", whole=True)
    with pytest.raises(MemoryFaultError, match="1 stores out, 4 bytes after it"):
        run(CUMSUM, {"x": SMALL, "out": out[:7]}, "linalg", tmp_path / "right", whole=True)


@pytest.mark.parametrize("op", ["gpu.barrier", "hivm.hir.pipe_barrier[<PIPE_ALL>]"])
def test_a_barrier_hides_nothing_beside_it(op: str, tmp_path: Path) -> None:
    lines = COPY.format(load=f"{op}\n{PLAIN[0]}\n{op}", store=f"{PLAIN[1]}\n{op}")
    out = torch.zeros_like(X)
    used = run(lines, {"x": X, "out": out}, "hivm", tmp_path / "right")
    assert op.partition("[")[0] in used
    assert torch.equal(out, X)
    with pytest.raises(MemoryFaultError, match="1 loads x"):
        run(lines, {"x": X[:7], "out": out}, "hivm", tmp_path / "right")


def test_a_hint_hides_nothing_beside_it(tmp_path: Path) -> None:
    hint = "annotation.mark %l {multi_buffer = 2 : i32} : memref<8xi32>"
    lines = COPY.format(load=f"{hint}\n{PLAIN[0]}", store=PLAIN[1])
    out = torch.zeros_like(X)
    assert "annotation.mark" in run(lines, {"x": X, "out": out}, "hivm", tmp_path / "right")
    assert torch.equal(out, X)
    with pytest.raises(MemoryFaultError, match="1 loads x"):
        run(lines, {"x": X[:7], "out": out}, "hivm", tmp_path / "right")


POINTER = """
%c0 = arith.constant 0 : index
%c5 = arith.constant 5 : index
%size = arith.constant 1000000 : index
%address = memref.load %x[%c0] : memref<?xi64>
%m = hivm.hir.pointer_cast(%address) [%size] : memref<?xi32>
%v = memref.load %m[%c5] : memref<?xi32>
memref.store %v, %out[%c0] : memref<?xi32>
"""


def test_an_address_from_data_is_bounded_by_what_it_reaches(tmp_path: Path) -> None:
    """The operation claims a million words; that widens nothing."""
    table = X.clone()
    x, out = torch.tensor([table.data_ptr()]), torch.zeros(1, dtype=torch.int32)
    for words, message in ((8, ""), (5, "1 loads table, 4 bytes after it"), (0, "no argument")):
        reached = [Reached("table", "x", 0, table.data_ptr(), 4 * words)] if words else []

        def once(reached=reached) -> list[str]:
            tensors = {"x": x, "out": out}
            return run(POINTER, tensors, "linalg", tmp_path / "right", reach=lambda *_: reached)

        if message:
            with pytest.raises(MemoryFaultError, match=message):
                once()
        else:
            assert "hivm.hir.pointer_cast" in once()
            assert out.tolist() == [31]
            assert x.tolist() == [table.data_ptr()]


VARIANTS = {
    "transposed": (
        "hivm.hir.vnot",
        "broadcast = array<i64>, operandSegmentSizes = array<i32: 1, 1, 0>, "
        "transpose = array<i64: 0>",
        "a transposed operand",
    ),
    "backwards": (
        "hivm.hir.vcumsum",
        "cum_dims = array<i64: 0>, reverse = true",
        "or backwards",
    ),
    "atomic": ("hivm.hir.store", "atomic_kind = #hivm.atomic_kind<add>", "an atomic kind"),
    "rounding": (
        "hivm.hir.vcast",
        "broadcast = array<i64>, operandSegmentSizes = array<i32: 1, 1, 0>, "
        "round_mode = #hivm.round_mode<odd>, transpose = array<i64>",
        "rounding odd",
    ),
}


@pytest.mark.parametrize(
    "op", ["debug", "pipe_barrier", "sync_block", "sync_block_set", "sync_block_wait"]
)
def test_what_is_dropped_takes_no_other_line_along(op: str) -> None:
    from dsacp.ascend_ir.rule import apply

    store_line = '  "memref.store"(%1, %2, %3) : (i32, memref<8xi32>, index) -> ()\n'
    used: set[str] = set()
    line = f'  "hivm.hir.{op}"(%1) : (i32) -> () loc(#loc)\n'
    assert apply(store_line + line + store_line, RULES["linalg"], used) == 2 * store_line
    assert used == {f"hivm.hir.{op}"}


def test_every_rule_is_tested_here_and_gives_its_reason() -> None:
    text = Path(__file__).read_text()
    for rule in RULES["hivm"]:
        assert rule.op.rpartition(".")[2] in text, rule.op
        assert rule.why


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_that_no_rule_covers_is_refused(name: str) -> None:
    from dsacp.ascend_ir.rule import apply

    op, properties, message = VARIANTS[name]
    kinds = "f32" if op.endswith("vcast") else "i32"
    line = f'"{op}"(%1, %2) <{{{properties}}}> : (memref<8x{kinds}>, memref<8xi32>) -> () loc(#loc)'
    with pytest.raises(UnsupportedOpError, match=message):
        apply(line, RULES["hivm"], set())


def test_a_call_that_no_rule_knows_is_refused() -> None:
    from dsacp.ascend_ir.rule import apply

    line = '%1 = "func.call"(%2) <{callee = @triton_sort_0}> : (tensor<8xi32>) -> tensor<8xi32>'
    with pytest.raises(UnsupportedOpError, match="a call of @triton_sort_0"):
        apply(line, RULES["linalg"], set())
