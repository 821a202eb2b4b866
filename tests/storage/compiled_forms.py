"""The two forms of storage's compiled modules: as they were built, and the same files uncompiled."""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

__all__ = ["FORMS", "load"]

ROOT = Path(__file__).resolve().parents[2]
NAMES = (
    "wire.messages.octets",
    "storage.state.session_window",
    "storage.messages.fast_path_publish",
    "storage.messages.fast_path_acks",
)
FORMS = ("pure", "compiled")


class SourceOnly:
    """Finds these modules as .py files although extension modules lie beside them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the source of one of the modules."""
        del path, target
        if fullname not in NAMES:
            return None
        return importlib.util.spec_from_file_location(fullname, ROOT / (fullname.replace(".", "/") + ".py"))


def load(form: str) -> SimpleNamespace:
    """Return the modules of one form by their short names, and whether they are compiled."""
    before = {name: sys.modules.pop(name) for name in NAMES if name in sys.modules}
    finder = SourceOnly()
    if form == "pure":
        sys.meta_path.insert(0, finder)
    try:
        found = {name.rpartition(".")[2]: importlib.import_module(name) for name in NAMES}
    finally:
        if form == "pure":
            sys.meta_path.remove(finder)
        for name in NAMES:
            sys.modules.pop(name, None)
        sys.modules.update(before)
    compiled = not str(found["fast_path_publish"].__file__).endswith(".py")
    return SimpleNamespace(compiled=compiled, **found)
