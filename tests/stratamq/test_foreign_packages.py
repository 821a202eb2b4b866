"""Another package under the name of a room, first on the path: one line, where a traceback was."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stratamq.foreign_packages import explain_conflict

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("room", "words"), [("conf", ("doctor", "--local")), ("conf", ("--help",)), ("admin", ("doctor", "--local"))]
)
def test_a_foreign_package_is_named(room: str, words: tuple[str, ...], tmp_path: Path) -> None:
    """`doctor` has a check of foreign packages, and could not begin."""
    (tmp_path / room).mkdir()
    (tmp_path / room / "__init__.py").touch()
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    ended = subprocess.run(
        [sys.executable, "-c", "import sys; from stratamq.cli.main import main; sys.exit(main(sys.argv[1:]))", *words],
        capture_output=True,
        text=True,
        cwd=tmp_path.parent,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert ended.returncode == 1 and ended.stderr.count("\n") == 1, ended.stderr
    assert ended.stderr.startswith(f"stratamq: another package named {room} precedes StrataMQ's")
    assert str(tmp_path / room) in ended.stderr


@pytest.mark.parametrize("name", ["conf.nothing", "pyspark", ""])
def test_missing_package_stays_import_error(name: str) -> None:
    with pytest.raises(ImportError):
        explain_conflict(ImportError("no module", name=name or None))
