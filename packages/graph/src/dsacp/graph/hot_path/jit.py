"""No kernel is compiled or loaded under capture."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dsacp.core import HostSyncError


class _Refusal:
    """Triton's hook of the whole process: refuses one thread and asks ``before`` for the others.

    Where threads leave out of order it stays in the chain of hooks, inactive.
    """

    def __init__(self, before: Any) -> None:
        self.before = before
        self.active = True
        self._thread = threading.get_ident()

    def __call__(self, *args: Any, **info: Any) -> Any:
        if not self.active or threading.get_ident() != self._thread:
            return None if self.before is None else self.before(*args, **info)
        kernel = getattr(info.get("fn"), "name", None) or info.get("repr") or "a kernel"
        raise HostSyncError(
            f"expected every kernel compiled before the capture, found Triton compiling {kernel} "
            "for new argument types: warm up with the capture's own shapes and dtypes first"
        )


def _hook_owner() -> tuple[Any, str] | None:
    """Find where this Triton keeps the hook that it calls before a compilation."""
    triton = sys.modules.get("triton")
    if triton is None:
        return None
    runtime = getattr(getattr(triton, "knobs", None), "runtime", None)
    if hasattr(runtime, "jit_cache_hook"):
        return runtime, "jit_cache_hook"
    # Triton up to 3.3, and triton-ascend, hang it on the class.
    function = getattr(getattr(triton, "runtime", None), "JITFunction", None)
    return (function, "cache_hook") if hasattr(function, "cache_hook") else None


@contextmanager
def no_jit_compile() -> Iterator[None]:
    """Forbid Triton compilation by this thread; does nothing where Triton is not loaded.

    Raises:
        HostSyncError: at the first kernel that is not in the process's cache.
    """
    found = _hook_owner()
    if found is None:
        yield
        return
    owner, name = found
    refusal = _Refusal(getattr(owner, name))
    setattr(owner, name, refusal)
    try:
        yield
    finally:
        refusal.active = False
        if getattr(owner, name) is refusal:
            setattr(owner, name, refusal.before)
