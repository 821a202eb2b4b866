"""Private names are used in the product only: a test uses a public function, or observes behaviour."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
# NamedTuple and two libraries have public names that begin with an underscore. Mutants take rules away inside: they
# have a folder, but for one that must run in the process of the matrix of messages.
EXCEPTED = {"_replace", "_jvm", "_gateway", "_out_message_mutex", "_asked_before"}


def foreign_private_names(path: Path) -> list[str]:
    """Return the uses of private attributes of another object than the own one."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.endswith("__"):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            own = own or ast.unparse(node.value) == "super()"
            if not own and node.attr not in EXCEPTED:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    return found


def test_tests_and_benchmarks_use_public_names() -> None:
    paths = sorted((ROOT / "tests").rglob("*.py")) + sorted((ROOT / "bench").glob("*.py"))
    found = [use for path in paths if "mutants" not in path.parts for use in foreign_private_names(path)]
    assert not found, "\n".join(found)
