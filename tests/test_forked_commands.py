"""Commands of a process that forks end as commands of a shell do."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.forked_commands import run_command

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("words", [("version",), ("node", "list", "--data", "nowhere"), ("nod",)])
def test_forked_command_equals_separate_process(words: tuple[str, ...]) -> None:
    own = subprocess.run(
        [sys.executable, "-m", "stratamq", *words], capture_output=True, text=True, check=False, cwd=ROOT
    )
    forked = run_command(*words)
    assert (forked.returncode, forked.stdout, forked.stderr) == (own.returncode, own.stdout, own.stderr)


def test_each_command_has_its_own_environment_and_input(tmp_path: Path) -> None:
    """Several run at once."""
    words = ("user", "add", "x", "--data", str(tmp_path), "--password-fd")
    asked = run_command(*words, "0", given="word", environment={**os.environ, "STRATAMQ_ROUTER": "127.0.0.1:1"})
    assert "operator.pem" in asked.stderr and "no router is known" not in asked.stderr
    assert "no router is known" in run_command(*words, "0", given="word").stderr
    with ThreadPoolExecutor(4) as at_once:
        ends = [*at_once.map(lambda number: run_command(f"no-{number}").stderr, range(8))]
    assert [f"'no-{number}'" in output for number, output in enumerate(ends)] == [True] * 8
