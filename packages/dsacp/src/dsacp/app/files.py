"""Files that a person names on the command line, read whole."""

from pathlib import Path

from dsacp.core import DsacpError


def read_text(path: Path, failure: type[DsacpError]) -> str:
    """Read a UTF-8 file, with or without a byte-order mark.

    Raises:
        DsacpError: of type ``failure``, when there is no such file, or it may never end.
    """
    try:
        other = path.exists() and not path.is_file()
        text = "" if other else path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise failure(
            f"{path}: expected a readable text file, found: {error}: check the path"
        ) from None
    if other:
        # a device or a pipe may never end
        raise failure(f"{path}: expected a regular file, found something else: copy it to one")
    return text
