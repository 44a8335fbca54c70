"""Files that a command writes: known to be writable before the work, and written whole or not."""

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

from dsacp.core.errors import LayoutError

PART_PREFIX = ".dsacp-part-"


def check_output(option: str, path: Path | None, reads: Iterable[Path | None] = ()) -> None:
    """Find out before a long run whether its result can be written.

    Args:
        option: what named the file, such as "--json"; leads the message.
        path: the file to write, None for none.
        reads: files that the run reads; None stands for one that was not given.

    Raises:
        LayoutError: the path is a folder, is one of ``reads`` (under whatever name), or cannot be
            written.
    """
    if path is None:
        return
    try:
        found = _obstacle(path, [source for source in reads if source is not None])
    except (OSError, RuntimeError) as error:  # the latter for links in a circle
        found = str(error)
    if found is not None:
        raise LayoutError(
            f"expected {option} {path} as a file that can be written, found {found}: name a file "
            "in a folder of yours"
        )


def write_whole(path: Path, text: str) -> None:
    """Write a UTF-8 file that others see whole or not at all; links lead to the file written.

    Raises:
        OSError: it cannot be written; what was there before is untouched.
    """
    if not _is_replaceable(path):
        path.write_text(text, encoding="utf-8")  # a device or a pipe has no whole
        return
    place = path.resolve()
    number, name = tempfile.mkstemp(prefix=PART_PREFIX, dir=place.parent)
    part = Path(name)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as stream:
            stream.write(text)
        _take_mode(part, place)
        part.replace(place)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def _obstacle(path: Path, reads: Iterable[Path]) -> str | None:
    """Say why a path cannot be written; None if it can, which is tried beside it."""
    if path.is_dir():
        return "a folder"
    if not path.resolve().parent.is_dir():
        return f"no folder {path.resolve().parent}"
    for source in reads:
        if path.exists() and source.exists() and path.samefile(source):
            return f"{source}, which the run reads"
    if path.exists() and not os.access(path, os.W_OK):
        return "no permission to write"
    if _is_replaceable(path):
        folder = path.resolve().parent
        if not os.access(folder, os.W_OK):
            return f"no permission to write in {folder}"
        with tempfile.NamedTemporaryFile(prefix=PART_PREFIX, dir=folder):
            pass
    return None


def _is_replaceable(path: Path) -> bool:
    """Whether a path is a regular file or nothing yet, so that a new file may take its place."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return True


def _take_mode(part: Path, place: Path) -> None:
    """Give a temporary file, which is private, the mode of the old file or of any new one."""
    if place.exists():
        shutil.copymode(place, part)
        return
    mask = os.umask(0)
    os.umask(mask)
    part.chmod(0o666 & ~mask)
