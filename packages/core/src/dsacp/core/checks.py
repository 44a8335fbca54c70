"""Whole numbers inside a range; floats and booleans are refused, not rounded."""

from numbers import Integral

from dsacp.core.errors import LayoutError

INT32_MAX = 2**31 - 1
"""Metadata is int32, so that no count or position may be larger."""

MAX_TP_SIZE = 64
"""Ranks that sharding is made and tested for."""


def check_whole(name: str, value: object, low: int, high: int = INT32_MAX, do: str = "") -> None:
    """Refuse a value that is not a whole number in ``low..high``.

    Args:
        name: what the value is called where it was given.
        value: integers of other libraries count too, booleans do not.
        low: smallest value allowed.
        high: largest value allowed.
        do: what to do about it, where that is more than to pass such a number.

    Raises:
        LayoutError: with the range and the value.
    """
    whole = type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))
    if not whole or not low <= value <= high:  # type: ignore[operator]
        wanted = f">= {low}" if high == INT32_MAX else f"in {low}..{high}"
        raise LayoutError(
            f"expected {name} {wanted} as a whole number{_limit(value, high)}, found "
            f"{_short(value)}: {do or f'pass a whole number {wanted}'}"
        )


def _limit(value: object, high: int) -> str:
    too_large = isinstance(value, Integral) and high == INT32_MAX and value > high  # type: ignore[operator]
    return f" below {INT32_MAX + 1}" if too_large else ""


def _short(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a number of {value.bit_length()} bits"
    return repr(value)
