"""Triton kernels as the Ascend compilers leave them, run on a CPU with every access looked up.

    with execute(level="hivm"):
        kernel[grid](...)

Triton and the two compilers are imported by the first launch, not with this package.
"""

from dsacp.ascend_ir.errors import (
    CompileError,
    IrError,
    LaunchError,
    MemoryFaultError,
    MissingCompilerError,
    NotExecutedError,
    RaceError,
    UninitialisedError,
    UnsupportedOpError,
)
from dsacp.ascend_ir.execute import Executed, Execution, execute
from dsacp.ascend_ir.launch import Launch
from dsacp.ascend_ir.linalg import linalg_of
from dsacp.ascend_ir.memory import Reached
from dsacp.ascend_ir.report import Fault

__all__ = [
    "CompileError",
    "Executed",
    "Execution",
    "Fault",
    "IrError",
    "Launch",
    "LaunchError",
    "MemoryFaultError",
    "MissingCompilerError",
    "NotExecutedError",
    "RaceError",
    "Reached",
    "UninitialisedError",
    "UnsupportedOpError",
    "execute",
    "linalg_of",
]
