"""The package is independent: it imports only the standard library and itself, and its entry point lists all names."""

import ast
import importlib
import sys
from pathlib import Path

import pytest

import mqtt

MODULES = sorted(Path(mqtt.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_package_imports(path: Path) -> None:
    """No other package, no third party, no I/O library."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            top = name.split(".")[0]
            assert top == "mqtt" or top in sys.stdlib_module_names, name
            assert top not in ("socket", "asyncio", "threading", "time", "random"), name


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_package_all_is_sorted_and_complete(path: Path) -> None:
    module = importlib.import_module("mqtt" if path.stem == "__init__" else f"mqtt.{path.stem}")
    for name in module.__all__:
        assert hasattr(module, name), name
    assert len(set(module.__all__)) == len(module.__all__)
