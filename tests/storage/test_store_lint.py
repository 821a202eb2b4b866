"""Our sources avoid the library's traps: a lint rule."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packages import PACKAGES

ROOT = Path(__file__).parents[2]
ADAPTER = Path("storage/store/lsm_file.py")


def _traps(tree: ast.AST, *, adapter: bool) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr="delete_range"):
                yield "delete_range returns wrong data"
            case ast.Delete(targets=[ast.Subscript(value=ast.Name(id=name), slice=ast.Slice())]) if "db" in name:
                yield "del db[a:b] is delete_range"
            case ast.Call(func=ast.Attribute(attr="work", value=owner), args=arguments):
                of_library = adapter or arguments or getattr(owner, "id", "") in ("db", "handle", "lsm")
                if of_library and [getattr(argument, "id", None) for argument in arguments] != [
                    "_AUTOMERGE",
                    "_WORK_KB",
                ]:
                    yield "work() may spin for ever unless called with the automerge count"
            case ast.Import(names=names) if any(alias.name == "lsm" for alias in names) and not adapter:
                yield "only the adapter knows lsm-db"
            case ast.ImportFrom(module="lsm"):
                yield "only the adapter knows lsm-db"
            case ast.Attribute(attr="fetch" | "fetch_range" | "incr") if adapter:
                yield "fetch turns every error into KeyError"
            case _:
                pass


def test_sources_avoid_the_traps_of_the_library() -> None:
    """Every module of ours, the adapter included."""
    found = []
    for package in {*PACKAGES, "bench"} - {"gateways"}:  # a work() of its own, and no store
        for file in sorted((ROOT / package).rglob("*.py")):
            name = file.relative_to(ROOT)
            found += [f"{name}: {trap}" for trap in _traps(ast.parse(file.read_text()), adapter=name == ADAPTER)]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "db.delete_range(a, b)",
        "del db[a:b]",
        "handle.work()",
        "handle.work(1, 4096)",
        "import lsm",
        "from lsm import LSM",
    ],
)
def test_lint_rule_detects_each_trap(source: str) -> None:
    """A lint rule without findings may be broken."""
    assert list(_traps(ast.parse(source), adapter=False))
