"""Modules that a library imports and a process never uses: imported when something of them is asked for."""

import importlib.util
import sys

__all__ = ["import_late"]


def import_late(*names: str) -> None:
    """Let ``import name`` cost nothing until an attribute of the module is read; those that are there stay as they are.

    ``from name import ...`` reads one. To be called before threads run, and before the library is imported.
    """
    for name in names:
        spec = importlib.util.find_spec(name) if name not in sys.modules else None
        if spec is None or spec.loader is None:
            continue
        loader = importlib.util.LazyLoader(spec.loader)
        spec.loader = loader
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
