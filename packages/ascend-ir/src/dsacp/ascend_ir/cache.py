"""Compiled kernels on disk, shared by processes that may compile the same one at once."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

FOLDER_VARIABLE = "DSACP_ASCEND_IR_CACHE"


def folder() -> Path:
    """Return where compiled kernels lie: DSACP_ASCEND_IR_CACHE, or the user's cache folder."""
    if chosen := os.environ.get(FOLDER_VARIABLE):
        return Path(chosen)
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home, "dsacp-ascend-ir")


def entry(parts: Iterable[object], make: Callable[[Path], None]) -> Path:
    """Return the folder of what ``parts`` name, and make it first where it does not exist.

    Two processes may make it at once: each does so in a folder of its own, and the first one to
    finish gives it its name.

    Args:
        parts: everything that the content depends on; the sources of this package are added.
        make: fills an empty folder.
    """
    key = hashlib.sha256(repr([*parts, _own_sources()]).encode()).hexdigest()[:24]
    target = folder() / key
    if target.exists():
        return target
    folder().mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f"{key}.", dir=folder()))
    try:
        make(made)
        made.rename(target)
    except OSError:
        if not target.exists():  # else another process was first
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return target


_AFTERWARDS = {
    "__init__",
    "errors",
    "execute",
    "forked",
    "job",
    "memory",
    "pytest_plugin",
    "report",
}
"""Sources that compiled kernels do not depend on."""


@cache
def _own_sources() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.*")):
        if path.suffix in (".py", ".c") and path.stem not in _AFTERWARDS:
            digest.update(path.read_bytes())
    return digest.hexdigest()
