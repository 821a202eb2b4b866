"""Runs every test of the loop twice: on the compiled modules and on the same files uncompiled."""

import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from conf.compiled import COMPILED_MODULES

ROOT = Path(__file__).resolve().parents[3]
HOT = "edge.loop."
NAMES = (*(name.removeprefix(HOT) for name in COMPILED_MODULES if name.startswith(HOT)), "options", "handler")
_LOADED: dict[str, SimpleNamespace] = {}


class SourceOnly:
    """Finds edge.loop modules as .py files even if an extension module exists."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if not fullname.startswith(HOT):
            return None
        source = ROOT / (fullname.replace(".", "/") + ".py")
        return importlib.util.spec_from_file_location(fullname, source)


def load(form: str) -> Any:
    """Return the modules of one form, as attributes by their short names."""
    if form not in _LOADED:
        before = {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith(HOT)}
        finder = SourceOnly()
        if form == "pure":
            sys.meta_path.insert(0, finder)
        try:
            found = {name: importlib.import_module(HOT + name) for name in NAMES}
        finally:
            if form == "pure":
                sys.meta_path.remove(finder)
            for name in list(sys.modules):
                if name.startswith(HOT):
                    del sys.modules[name]
            sys.modules.update(before)
        compiled = not str(found["parse"].__file__).endswith(".py")
        _LOADED[form] = SimpleNamespace(form=form, compiled=compiled, **found)
    return _LOADED[form]


@pytest.fixture(params=["pure", "compiled"])
def hot(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The modules in one of their two forms."""
    modules = load(request.param)
    if request.param == "compiled" and not modules.compiled:
        pytest.skip("not built")
    yield modules
