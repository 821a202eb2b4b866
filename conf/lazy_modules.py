"""Lazy loading of modules that a library imports but a process rarely uses."""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

__all__ = ["import_late"]


class _LateModules(MetaPathFinder):
    """Finds modules of given names; each loads when an attribute is first read."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in self._names else None
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


def import_late(*names: str) -> None:
    """Let ``import name`` cost nothing until an attribute of the module is read; loaded modules are not changed.

    ``from name import ...`` reads one, and so does a second ``import name``. Call it before threads run, and before the
    library is imported.
    """
    if names:
        sys.meta_path.insert(0, _LateModules(frozenset(names)))
