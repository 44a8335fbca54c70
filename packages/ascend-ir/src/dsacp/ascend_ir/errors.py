"""What can go wrong, as one family of errors.

Every message states what was expected, what was found and what to do.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsacp.ascend_ir.report import Fault


class IrError(Exception):
    """Base of every error that this package raises on purpose.

    Attributes:
        faults: what a launch did wrong, where one ran.
    """

    faults: "tuple[Fault, ...]" = ()


class MissingCompilerError(IrError):
    """A compiler is not installed, or is another one than the kernel was written for."""


class CompileError(IrError):
    """A compiler refused a kernel."""


class UnsupportedOpError(IrError):
    """The compiler wrote an operation, or a variant of one, that is not known here.

    Attributes:
        op: the operation's name.
    """

    def __init__(self, op: str, found: str, advice: str = "add a rule for it to `rules`") -> None:
        super().__init__(f"expected an operation that is known here, found {op} {found}: {advice}")
        self.op = op


class NotExecutedError(IrError):
    """A launch did not, or could not, run compiled code."""


class LaunchError(IrError):
    """A device would refuse a launch: its grid, or the kind of an argument."""


class MemoryFaultError(IrError):
    """A kernel touched bytes that belong to no argument and to no local buffer."""


class RaceError(IrError):
    """The result depends on the order of a grid's programs."""


class UninitialisedError(IrError):
    """The result depends on what was in local memory before."""
