"""The base of every dispatch mode here."""

from torch.utils._python_dispatch import TorchDispatchMode


class PlainDispatchMode(TorchDispatchMode):
    """A dispatch mode that does not import the compiler.

    By default torch guards each mode's handler against Dynamo, which it imports on the first op:
    seconds on every start, for modes that never run under ``torch.compile``.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
