"""What owns storages, or keeps addresses of them, is not copied: a copy would write the original's.

Launches are prepared with addresses, and functions are copied by reference.
"""

from typing import ClassVar, NoReturn

from dsacp.core.errors import AliasError


class Uncopied:
    """Base of owners: ``copy.copy``, ``copy.deepcopy`` and ``pickle`` raise ``AliasError``.

    Attributes:
        instead: what to do in place of a copy, as the message says it.
    """

    __slots__ = ()
    instead: ClassVar[str] = "make another one, which owns its buffers"

    def __copy__(self) -> NoReturn:
        self._refuse("copy")

    def __deepcopy__(self, memo: object) -> NoReturn:
        self._refuse("deepcopy")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        self._refuse("pickle")

    def _refuse(self, how: str) -> NoReturn:
        raise AliasError(
            f"expected one owner of the addresses of a {type(self).__name__}, found a {how} of it, "
            f"which would write the original's buffers or lose them: {self.instead}"
        )
