"""How many programs one launch may have: launchers check or cut their grid before they launch."""

from dsacp.core import CapacityError

MAX_PROGRAMS = 2**31 - 1
MAX_NPU_PROGRAMS = 65_535
"""Triton on Ascend refuses a grid of more."""


def max_programs(device_type: str) -> int:
    """Return the most programs that a launch on a device may have."""
    return MAX_NPU_PROGRAMS if device_type == "npu" else MAX_PROGRAMS


def check_programs(kernel: str, programs: int, device_type: str) -> None:
    """Raise ``CapacityError`` unless one launch may have as many programs."""
    most = max_programs(device_type)
    if programs > most:
        raise CapacityError(
            f"{kernel} needs {programs} programs for this batch, one launch on {device_type!r} has "
            f"at most {most}: split the batch"
        )


def launch_parts(count: int, programs: int, device_type: str) -> list[tuple[int, int]]:
    """Cut ``count`` items of ``programs`` programs each into launches, as (first item, items)."""
    if programs == 0:
        return []
    most = max(max_programs(device_type) // programs, 1)
    return [(first, min(most, count - first)) for first in range(0, count, most)]
