"""One call of a builder at a time, and under debug of one thread only."""

from threading import Lock, get_ident

from dsacp.core import AliasError

DO = (
    "give each thread a builder of its own, or hold a lock around the builder and the use of what "
    "it returns"
)


class Turn:
    """Taken by every call; a second one beside it is refused, not queued: it would write its views.

    Args:
        strict: only the owner may enter: who made the builder or bound last.

    Attributes:
        leave: ends a call; nothing but the lock's own method, as every build pays for it.
    """

    __slots__ = ("_acquire", "_owner", "leave")

    def __init__(self, strict: bool) -> None:
        lock = Lock()
        self._acquire = lock.acquire
        self._owner = get_ident() if strict else None
        self.leave = lock.release

    def enter(self) -> None:
        """Begin a call.

        Raises:
            AliasError: another call runs, or, where strict, another thread owns the builder.
        """
        if self._owner is not None and self._owner != get_ident():
            raise AliasError(
                f"expected calls of thread {self._owner}, which made or bound this builder, found "
                f"thread {get_ident()}: bind() again in the thread that takes it over, or {DO}"
            )
        if not self._acquire(False):
            raise AliasError(
                f"expected one call of a builder at a time, found one of thread {get_ident()} "
                f"while another is inside: {DO}"
            )

    def take_over(self) -> None:
        """Begin a call as the new owner."""
        owner = self._owner
        self._owner = None
        try:
            self.enter()
        except AliasError:
            self._owner = owner
            raise
        self._owner = None if owner is None else get_ident()
