"""Acts on a module when the host imports it, never before.

vllm-ascend replaces parts of vLLM while a worker starts. Importing its attention modules from a
plug-in, earlier than that, would bind the parts that it is about to replace.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Action = Callable[[ModuleType], None]


class _After(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, action: Action) -> None:
        self._name = name
        self._action = action

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._action)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any, action: Action) -> None:
        self._loader = loader
        self._action = action

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._action(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def when_imported(name: str, action: Action) -> None:
    """Call ``action`` with a module once it has been imported, at once if it already was."""
    module = sys.modules.get(name)
    if module is not None:
        action(module)
    else:
        sys.meta_path.insert(0, _After(name, action))
