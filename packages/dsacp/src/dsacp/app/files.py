"""Files that a person names on the command line: read whole, or known to be writable."""

import os
from pathlib import Path

from dsacp.core import DsacpError, LayoutError


def read_text(path: Path, failure: type[DsacpError]) -> str:
    """Read a UTF-8 file, with or without a byte-order mark.

    Raises:
        DsacpError: of type ``failure``, when there is no such file, or it may never end.
    """
    if path.exists() and not path.is_file():
        # a device or a pipe may never end
        raise failure(f"{path}: expected a regular file, found something else: copy it to one")
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise failure(
            f"{path}: expected a readable text file, found: {error}: check the path"
        ) from None


def check_output(path: Path | None) -> None:
    """Find out before a long run whether its report can be written.

    Raises:
        LayoutError: the path is a folder, or its folder is missing or not writable.
    """
    if path is None:
        return
    found = None
    if path.is_dir():
        found = "a folder"
    elif not path.parent.is_dir():
        found = f"no folder {path.parent}"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        found = "no permission to write"
    if found is not None:
        raise LayoutError(
            f"expected --json {path} as a file that can be written, found {found}: name a file in "
            "a folder of yours"
        )
