"""The page of security checks: each line names a test that exists; and the checks that are about the tree itself."""

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packages import PACKAGES

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "security_checks.md"
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
CODE_IN_DATA = ("pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml", "ctypes.util")
NOT_CALLED = ("eval", "exec", "compile", "os.system", "os.popen", "pickle.loads", "marshal.loads")

Row = tuple[str, str, list[str], str]  # number, behaviour, tests, the last column unchanged


def rows() -> list[Row]:
    """Return the lines of the tables."""
    found = re.findall(r"^\| ([CTGABD]\d+) \| (.+?) \| (.+?) \|$", PAGE.read_text(), re.MULTILINE)
    return [(number, text, re.findall(r"`(tests/[^`]+)`", tests), tests) for number, text, tests in found]


ROWS = rows()
NAMED = sorted({test for _, _, tests, _ in ROWS for test in tests})


def test_each_check_has_one_line() -> None:
    """None is missing or repeated, and each names a test or the reason for its absence."""
    numbers = [number for number, *_ in ROWS]
    assert [number for number, count in Counter(numbers).items() if count > 1] == []
    for letter in "CTGABD":
        mine = [int(number[1:]) for number in numbers if number[0] == letter]
        assert mine and mine == list(range(1, len(mine) + 1)), letter
    bare = [number for number, _, tests, text in ROWS if not tests and not text.startswith("none: ")]
    assert not bare, "lines that name no test"


def function_of(test: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Return the definition of a test ``path::name``, None if there is none."""
    path, _, name = test.partition("::")
    if not (ROOT / path).exists():
        return None
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return next((node for node in ast.walk(tree) if isinstance(node, kinds) and node.name == name), None)


@pytest.mark.parametrize("test", NAMED)
def test_a_named_test_exists(test: str) -> None:
    assert function_of(test) is not None, f"{test} does not exist"


def test_missing_ocsp_stapling_is_documented() -> None:
    """Python's TLS has no function for it: the page states it, and no setting offers it."""
    page = (ROOT / "docs" / "security.md").read_text().split("## What is not offered")[1]
    assert "stapling" in page
    assert "stapl" not in (ROOT / "docs" / "settings.md").read_text().lower()


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def calls(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)
            if any(word.arg == "shell" and ast.unparse(word.value) != "False" for word in node.keywords):
                yield "shell"


YAML_IS_WRITTEN = "stratamq/cli/output.py"  # and read nowhere


def test_no_data_becomes_code() -> None:
    """No pickle or similar, no evaluation of text, no shell, in any package."""
    wrong = []
    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found = [name for name in imports(tree) if name.split(".")[0] in CODE_IN_DATA]
        if path.relative_to(ROOT).as_posix() == YAML_IS_WRITTEN:
            found.remove("yaml")
            found += [name for name in calls(tree) if name.startswith("yaml.") and name != "yaml.safe_dump"]
        found += [name for name in calls(tree) if name in NOT_CALLED or name == "shell"]
        wrong += [f"{path.relative_to(ROOT)}: {name}" for name in found]
    assert not wrong, "\n".join(wrong)


def test_scan_finds_forbidden_calls() -> None:
    tree = ast.parse("import pickle\neval('1')\nsubprocess.run('x', shell=True)")
    assert "pickle" in imports(tree) and {"eval", "shell"} <= set(calls(tree))


def plain(name: str) -> str:
    """Return the name of a package as all ways to write it are compared."""
    return re.split(r"[\[<>=!~; ]", name)[0].lower().replace("_", "-").replace(".", "-")


def pinned() -> dict[str, str]:
    found = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            pin = re.fullmatch(r"([\w.-]+)==([\w.+!]+)", line.split(";")[0].strip())
            assert pin, f"constraints.txt: {line}"
            found[plain(pin[1])] = pin[2]
    return found


def wanted(*extras: str) -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *(word for extra in extras for word in project["optional-dependencies"][extra])]
    return {plain(word) for word in named}


def test_dependencies_have_one_version() -> None:
    """`make` installs packages with exact versions; an extra adds only listed ones."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert sorted(wanted(*extras) - set(pinned()) - {"stratamq"}) == []
    assert "-c constraints.txt" in (ROOT / "Makefile").read_text()


LOCKS: dict[str, tuple[str, ...]] = {"run": ("admin",), "dev": ("dev",), "jobs": (), "fuzz": ()}
OF_THEIR_OWN = {"run": {"setuptools", "wheel", "cython"}, "jobs": {"pyspark", "py4j", "jinja2"}, "fuzz": {"atheris"}}


@pytest.mark.parametrize("lock", LOCKS)
def test_each_installed_package_has_hashes(lock: str) -> None:
    """`make setup` refuses a package file without a hash here: `make locks` writes them."""
    text = (ROOT / "locks" / f"{lock}.txt").read_text()
    entries = text.replace("\\\n", " ").splitlines()
    found = {}
    for entry in entries:
        pin = re.fullmatch(r"([\w.-]+)==([\w.+!]+)( ; [^#]+?)?((?: +--hash=sha256:[0-9a-f]{64})+)", entry)
        assert pin, f"locks/{lock}.txt: {entry[:80]}"
        found[plain(pin[1])] = pin[2]
    assert {name: version for name, version in found.items() if pinned().get(name, version) != version} == {}
    wants = (wanted(*LOCKS[lock]) if LOCKS[lock] else set()) | OF_THEIR_OWN.get(lock, set())
    assert sorted(wants - set(found)) == []
    made = (ROOT / "Makefile").read_text()
    assert re.search(r"^LOCKED = .*--require-hashes --no-deps -r$", made, re.MULTILINE)
    assert f"$(LOCKED) locks/{lock}.txt" in made


def test_no_package_installed_without_hashes() -> None:
    """Except this project itself, and tools in separate folders that leave only a list."""
    lines = [
        line for line in (ROOT / "Makefile").read_text().splitlines() if "pip install" in line or "$(INSTALL)" in line
    ]
    others = [line for line in lines if "--no-deps -e ." not in line and not line.startswith(("INSTALL =", "LOCKED ="))]
    assert [line for line in others if "$(VENV)/lock/" not in line and "$(VENV)/audit/" not in line] == []
