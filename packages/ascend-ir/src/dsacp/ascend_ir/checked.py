"""Make every access of a kernel ask before it is made.

In LLVM's dialect each load and store gets its address from a call of the runner, which knows all
arguments and local buffers to the byte: a bad address is noted with its source line and replaced
by one of a scratch buffer. This comes before LLVM's optimiser, so that no access is missed because
its value turned out to be unused.
"""

import re
from dataclasses import dataclass

from dsacp.ascend_ir.errors import UnsupportedOpError

_BYTES = {"i1": 1, "i8": 1, "i16": 2, "f16": 2, "bf16": 2, "i32": 4, "f32": 4, "i64": 8, "f64": 8}
_LOAD = re.compile(r"^(\s*)(%\S+) = llvm\.load (%\S+) : !llvm\.ptr -> (\w+)(.*)$")
_STORE = re.compile(r"^(\s*)llvm\.store (%\S+), (%\S+) : (\w+), !llvm\.ptr(.*)$")
_OP = re.compile(r"^\s*(?:%\S+(?:, %\S+)* = )?\"?([a-z]\w*\.[\w.]+)")
_FUNCTION = re.compile(r"^\s*llvm\.func (?:\w+ )*@(\w+)\(")
_CALL = re.compile(r"llvm\.call @(\w+)\(")
_LOC = re.compile(r"^#(loc\d*) = loc\((.*)\)$", re.M)
_CALLED = " (called at "
_WRAPPER = "_mlir_ciface_"

_PURE_TEXT = """
add alloca and ashr bitcast br cond_br extractvalue fadd fcmp fdiv fmul fneg fpext fptosi fptoui
fptrunc frem freeze fsub func getelementptr icmp insertvalue inttoptr lshr mul or ptrtoint
return sdiv select sext shl sitofp srem sub trunc udiv uitofp undef unreachable urem xor zext
mlir.constant mlir.undef mlir.poison mlir.zero intr.abs intr.ceil intr.copysign intr.cos
intr.exp intr.exp2 intr.fabs intr.floor intr.fma intr.log intr.log10 intr.log2 intr.maximum
intr.maxnum intr.minimum intr.minnum intr.pow intr.round intr.roundeven intr.sin intr.smax
intr.smin intr.sqrt intr.trunc intr.umax intr.umin intr.ctlz intr.cttz intr.ctpop intr.assume
intr.fmuladd intr.powi intr.rint
"""
_PURE = frozenset(_PURE_TEXT.split())
"""Operations that touch no memory of ours."""

_FUNCTIONS_TEXT = """
ascend_ir_block malloc free acos acosf asin asinf atan atan2 atan2f atanf cbrt cbrtf cos cosf
cosh coshf erf erff exp expf expm1 expm1f fabsf floor floorf fmod fmodf log log1p log1pf logf
pow powf round roundeven roundevenf roundf sin sinf sinh sinhf sqrtf tan tanf tanh tanhf trunc
truncf ceil ceilf exp2 exp2f
"""
_FUNCTIONS = frozenset(_FUNCTIONS_TEXT.split())
"""Functions that a kernel may call: of the runner, and of the C library's mathematics."""


@dataclass(frozen=True)
class Checked:
    """A kernel whose accesses are checked.

    Attributes:
        text: the module.
        sites: source line of every access, by the number that the access passes.
    """

    text: str
    sites: list[str]


def check_accesses(text: str) -> Checked:
    """Add the calls to a module of LLVM's dialect in its short form.

    Raises:
        UnsupportedOpError: an operation that may touch memory in a way that is not checked here.
    """
    places = Places(text)
    lines, wrapper = [], False
    for line in text.splitlines():
        if function := _FUNCTION.match(line):
            wrapper = function[1].startswith(_WRAPPER)
        # the wrapper only unpacks the descriptors that the runner itself made
        lines += [line] if wrapper else _checked_line(line, places)
    module = next(i for i, line in enumerate(lines) if line.startswith("module"))
    lines[module] = "module {"
    lines[module + 1 : module + 1] = [
        "  llvm.func @ascend_ir_load(!llvm.ptr, i32, i32) -> !llvm.ptr",
        "  llvm.func @ascend_ir_store(!llvm.ptr, i32, i32) -> !llvm.ptr",
    ]
    made = "\n".join(lines) + "\n"
    # local buffers come from the runner, which knows, poisons and surrounds them
    made = made.replace("@malloc(", "@ascend_ir_malloc(").replace("@free(", "@ascend_ir_free(")
    made = re.sub(r"attributes \{(?:[^{}\"]|\"[^\"]*\"|\{[^}]*\})*\} \{", "{", made)
    return Checked(re.sub(r" \{hacc\.[^}]*\}", "", made), places.sites)


def _checked_line(line: str, places: "Places") -> list[str]:
    if load := _LOAD.match(line):
        indent, result, pointer, kind, rest = load.groups()
        site = places.number(rest)
        name = f"%checked_{site}"
        return [
            *_ask(indent, "load", name, pointer, _size("llvm.load", kind), site),
            f"{indent}{result} = llvm.load {name} : !llvm.ptr -> {kind}{rest}",
        ]
    if store := _STORE.match(line):
        indent, value, pointer, kind, rest = store.groups()
        site = places.number(rest)
        name = f"%checked_{site}"
        return [
            *_ask(indent, "store", name, pointer, _size("llvm.store", kind), site),
            f"{indent}llvm.store {value}, {name} : {kind}, !llvm.ptr{rest}",
        ]
    _check_known(line)
    return [line]


def _ask(indent: str, what: str, name: str, pointer: str, size: int, site: int) -> list[str]:
    return [
        f"{indent}{name}_size = llvm.mlir.constant({size} : i32) : i32",
        f"{indent}{name}_site = llvm.mlir.constant({site} : i32) : i32",
        f"{indent}{name} = llvm.call @ascend_ir_{what}({pointer}, {name}_size, {name}_site) : "
        "(!llvm.ptr, i32, i32) -> !llvm.ptr",
    ]


def _size(op: str, kind: str) -> int:
    if kind not in _BYTES:
        raise UnsupportedOpError(op, f"of {kind}", "add its size in bytes")
    return _BYTES[kind]


def _check_known(line: str) -> None:
    op = _OP.match(line)
    if op is None:
        return
    name = op[1].removeprefix("llvm.")
    if call := _CALL.search(line):
        if call[1] not in _FUNCTIONS:
            raise UnsupportedOpError("llvm.call", f"of {call[1]}", "supply that function")
    elif name not in _PURE:
        raise UnsupportedOpError(
            op[1], f"in `{line.strip()[:200]}`", "add it to what is known to touch no memory"
        )


class Places:
    """Source lines of a module's locations, and a number for every access."""

    def __init__(self, text: str) -> None:
        self._known = dict(_LOC.findall(text))
        self.sites: list[str] = []

    def number(self, rest: str) -> int:
        """Give an access its number; ``rest`` ends with its ``loc(...)``."""
        found = re.search(r"loc\((.*)\)\s*$", rest)
        self.sites.append(self.name(found[1]) if found else "an unknown line")
        return len(self.sites) - 1

    def name(self, loc: str) -> str:
        """Return "file:line", with who called it where it is inlined."""
        if loc.startswith("#"):
            return self.name(self._known.get(loc[1:], "unknown"))
        if call := re.fullmatch(r"callsite\((\S+) at (\S+)\)", loc):
            # of a chain of calls, the first and the last are told
            callee = self.name(call[1]).partition(_CALLED)[0]
            caller = self.name(call[2]).rpartition(_CALLED)[2].rstrip(")")
            return f"{callee}{_CALLED}{caller})" if callee != caller else callee
        if fused := re.match(r"fused(?:<.*>)?\[(.*)\]$", loc):
            parts = [self.name(part.strip()) for part in fused[1].split(",")]
            named = [part for part in parts if part != "an unknown line"]
            return named[0] if named else "an unknown line"
        if place := re.match(r'"([^"]+)":(\d+)(?::\d+)?', loc):
            return f"{place[1]}:{place[2]}"
        return "an unknown line"
