"""From `linalg` text to LLVM's dialect, straight or by way of the compiler's own HIVM pipelines."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dsacp.ascend_ir.errors import UnsupportedOpError
from dsacp.ascend_ir.mlir import op_names
from dsacp.ascend_ir.rule import Rule, apply
from dsacp.ascend_ir.rules_hivm import HIVM_RULES
from dsacp.ascend_ir.rules_linalg import LINALG_RULES
from dsacp.ascend_ir.tools import passes

Level = Literal["linalg", "hivm"]
RULES: dict[Level, tuple[Rule, ...]] = {
    "linalg": LINALG_RULES,
    "hivm": (*LINALG_RULES, *HIVM_RULES),
}
"""Every rewriting of an operation, by the level at which it may be needed."""

_UPSTREAM = {
    "affine", "arith", "bufferization", "builtin", "cf", "func", "linalg", "llvm", "math",
    "memref", "scf", "tensor", "vector",
}  # fmt: skip
"""Dialects that upstream's passes lower."""

_STRUCTURED = {"hfusion.arange"}
"""Operations of others with the interface of loops, which upstream's pass lowers."""

_BUFFERS = (
    # no pass here would take a buffer back, so returning one from a loop loses nothing
    "--one-shot-bufferize=allow-unknown-ops allow-return-allocs-from-loops",
    "--canonicalize",
)
_HIVM = (
    "--lower-hfusion-pipeline=enable-triton-kernel-compile=true",
    "--convert-to-hivm-pipeline=enable-triton-kernel-compile=true",
)
_LLVM = (
    "--convert-linalg-to-loops",
    "--canonicalize",
    "--cse",
    "--expand-strided-metadata",
    "--lower-affine",
    "--convert-scf-to-cf",
    "--convert-math-to-llvm",
    "--convert-math-to-libm",
    "--convert-arith-to-llvm",
    "--convert-index-to-llvm",
    "--finalize-memref-to-llvm",
    "--convert-func-to-llvm",
    "--convert-cf-to-llvm",
    "--reconcile-unrealized-casts",
)


@dataclass(frozen=True)
class Lowered:
    """A kernel in LLVM's dialect.

    Attributes:
        text: the module, with locations.
        rewrites: names of the operations that rules rewrote.
    """

    text: str
    rewrites: tuple[str, ...]


def lower(text: str, level: Level, target: str, folder: Path) -> Lowered:
    """Lower triton-ascend's `linalg` text.

    Args:
        text: what ``linalg_of`` returned.
        level: "linalg" lowers it as it is, "hivm" what bishengir's pipelines make of it.
        target: the NPU for which those pipelines compile.
        folder: an empty folder for files between the passes.

    Raises:
        CompileError: a pass failed.
        UnsupportedOpError: an operation is left that no rule covers.
    """
    used: set[str] = set()
    start = _write(folder / "0.mlir", _head(text, target))
    if level == "hivm":
        passes("the HIVM pipelines", start, folder / "1.mlir", _HIVM, generic=False)
        start = folder / "1.mlir"
        buffers = passes("bufferization", start, folder / "2.mlir", _BUFFERS, generic=True)
    else:
        plain = passes("parsing", start, folder / "1.mlir", (), generic=True)
        plain = _without_private(apply(plain, RULES[level], used))
        start = _write(folder / "2.mlir", _entry(plain))
        buffer = ("--convert-elementwise-to-linalg", *_BUFFERS)
        buffers = passes("bufferization", start, folder / "3.mlir", buffer, generic=True)
    return lower_buffers(buffers, level, folder, used)


def lower_buffers(text: str, level: Level, folder: Path, used: set[str]) -> Lowered:
    """Lower a module in generic form that works on buffers; ``used`` names earlier rewrites.

    Raises:
        CompileError: a pass failed.
        UnsupportedOpError: an operation is left that no rule covers.
    """
    # also for "linalg", as one-shot-bufferize writes copies of its own
    text = _entry(_declare_block(apply(text, RULES[level], used)))
    if level == "hivm":
        start = _write(folder / "4.mlir", text)
        upstream = ("--execution-engine-convert-hivm-to-upstream",)
        text = passes("HIVM to upstream", start, folder / "5.mlir", upstream, generic=True)
        text = _entry(apply(text, RULES[level], used))
    check_known(text)
    start = _write(folder / "6.mlir", text)
    llvm = passes("lowering to LLVM", start, folder / "7.mlir", _LLVM, generic=False)
    return Lowered(llvm, tuple(sorted(used)))


def check_known(text: str) -> None:
    """Refuse a module in generic form that holds an operation of a foreign dialect.

    Raises:
        UnsupportedOpError: names the first one.
    """
    for name, line in op_names(text):
        if name.partition(".")[0] not in _UPSTREAM and name not in _STRUCTURED:
            raise UnsupportedOpError(name, f"in `{line.strip()[:200]}`")


def _write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def _head(text: str, target: str) -> str:
    # `mix_mode` is for the launcher, and bishengir's parser does not know it
    text = re.sub(r', mix_mode\s*=\s*"[^"]*"', "", text)
    attributes = f'attributes {{hacc.target = #hacc.target<"{target}">}}'
    return re.sub(
        r"^module( attributes \{[^}]*\})? \{", f"module {attributes} {{", text, count=1, flags=re.M
    )


def _entry(text: str) -> str:
    """Take away what is said about arguments and entry to later stages and to the launcher.

    LLVM's dialect has no such attributes; none of them says where or how much is accessed.
    """
    text = re.sub(r"arg_attrs = \[[^\]]*\], ", "", text)
    # the C interface takes descriptors of tensors by address
    function = r"\1 {llvm.emit_c_interface} : () -> ()"
    text = re.sub(r"^(\s*\}\)) \{[^}]*\} : \(\) -> \(\)", function, text, flags=re.M)
    # hints beside loops and branches
    return re.sub(
        r"^(\s*\}\)) \{(?:hivm\.\w+|ExtractedLoadOrStore|DiscreteMemAccess)\b[^}]*\}",
        r"\1",
        text,
        flags=re.M,
    )


def _without_private(text: str) -> str:
    """Take away declarations of functions whose calls were rewritten."""
    pattern = (
        r'^\s*"func\.func"\(\) <\{[^\n]*sym_name = "triton_cumsum\w*", sym_visibility = "private"'
        r"[^\n]*\(\{\n\s*\}\)[^\n]*\n"
    )
    return re.sub(pattern, "", text, flags=re.M)


def _declare_block(text: str) -> str:
    declaration = (
        '  "func.func"() <{function_type = () -> i64, sym_name = "ascend_ir_block", '
        'sym_visibility = "private"}> ({\n  }) : () -> ()\n'
    )
    return re.sub(r'(^"builtin\.module"\(\)[^\n]*\(\{\n)', rf"\1{declaration}", text, flags=re.M)
