"""README.md's lines about the three services work as they stand, typed in a fresh copy of the tree."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packages import PACKAGES
from tests.stratamq.readme_lines import CANNOT, lines_of

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree without anything that a run left behind; what `make setup` made is there, so that it is quick."""
    copy = tmp_path_factory.mktemp("fresh") / "stratamq"
    copy.mkdir()
    for name in ("Makefile", "README.md", "constraints.txt", "pyproject.toml", "setup.py"):
        shutil.copy2(ROOT / name, copy / name)
    for room in (*PACKAGES, "locks"):
        shutil.copytree(ROOT / room, copy / room, ignore=shutil.ignore_patterns("__pycache__", "*.c.tmp"))
    shutil.copytree(ROOT / ".venv" / ".stamps", copy / ".venv" / ".stamps", copy_function=shutil.copyfile)  # as new
    for entry in (ROOT / ".venv").iterdir():
        if entry.name != ".stamps":
            (copy / ".venv" / entry.name).symlink_to(entry)
    return copy


def test_readme_quick_start_lists_required_commands() -> None:
    """One command, the three services, a publish over TLS."""
    lines = lines_of((ROOT / "README.md").read_text())
    assert [line.split(" --")[0] for line in lines[:5]] == [
        "make setup",
        ".venv/bin/stratamq init cluster",
        ".venv/bin/stratamq router",
        ".venv/bin/stratamq storage",
        ".venv/bin/stratamq edge",
    ]
    assert [line.partition(" ")[0] for line in lines[5:]] == ["mosquitto_sub", "mosquitto_pub"]


@pytest.mark.skipif(shutil.which("mosquitto_pub") is None, reason="mosquitto-clients is not installed")
@pytest.mark.parametrize("spread", [False, True], ids=["loopback", "namespaces"])
def test_the_lines_work(fresh: Path, spread: bool) -> None:
    """From a fresh tree to a delivered message, on one host and with a network for each node."""
    shutil.rmtree(fresh / "cluster", ignore_errors=True)
    words = [sys.executable, "-m", "tests.stratamq.readme_lines", str(fresh), *(["--spread"] if spread else [])]
    shown = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    if shown.returncode == CANNOT:
        pytest.skip(f"network namespaces cannot be made here: {shown.stdout}")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert [path.name for path in (fresh / "cluster").glob("*-0")]
