"""Completion in real shells: each one's own script, asked for a word that somebody began to type."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
WAIT_S = 60.0

pytestmark = pytest.mark.slow


def environment(folder: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("STRATAMQ_")}
    return kept | {"PATH": f"{BIN}:{kept['PATH']}", "HOME": str(folder), "TERM": "dumb"}


def script(folder: Path, shell: str) -> Path:
    """Return the file that a shell reads for completion, as ``--install-completion`` writes it."""
    made = subprocess.run(
        [BIN / "stratamq"],
        env=environment(folder) | {"_STRATAMQ_COMPLETE": f"source_{shell}"},
        capture_output=True,
        text=True,
        check=True,
    )
    path = folder / f"completion.{shell}"
    path.write_text(made.stdout)
    return path


def here(shell: str) -> str:
    return shutil.which(shell) or pytest.skip(f"{shell} is not here: apt install {shell}")


def test_bash(tmp_path: Path) -> None:
    """Words, verbs of a noun, and options."""
    for words, wanted in (("membersh", "membership"), ("client ex", "explain"), ("client list --col", "--columns")):
        line = f"stratamq {words}".split()
        asked = f"COMP_WORDS=({' '.join(line)}); COMP_CWORD={len(line) - 1}"
        code = f"source {script(tmp_path, 'bash')}; {asked}; _stratamq_completion stratamq; echo ${{COMPREPLY[@]}}"
        done = subprocess.run(
            [here("bash"), "-c", code], env=environment(tmp_path), capture_output=True, text=True, check=True
        )
        assert wanted in done.stdout.split(), done


def test_fish(tmp_path: Path) -> None:
    """The same, with the help of each."""
    for words, wanted in (("membersh", "membership"), ("client ex", "explain"), ("client list --col", "--columns")):
        code = f"source {script(tmp_path, 'fish')}; complete -C 'stratamq {words}'"
        done = subprocess.run(
            [here("fish"), "-c", code], env=environment(tmp_path), capture_output=True, text=True, check=True
        )
        assert wanted in [line.split("\t")[0] for line in done.stdout.splitlines()], done


def test_zsh_in_a_terminal(tmp_path: Path) -> None:
    """The Tab key finishes a noun and a verb."""
    shell = here("zsh")
    commands = (
        f"autoload -Uz compinit; compinit -u -d {tmp_path}/dump; source {script(tmp_path, 'zsh')}; PROMPT='ready> '"
    )
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(tmp_path)
        os.execve(shell, [shell, "-f", "-i"], environment(tmp_path))
    shown = b""

    def until(text: bytes, what: str) -> None:
        nonlocal shown
        deadline = time.monotonic() + WAIT_S
        while text not in shown:
            assert time.monotonic() < deadline, f"no {what}: {shown[-500:]!r}"
            if select.select([terminal], [], [], 0.2)[0]:
                shown += os.read(terminal, 65_536)

    try:
        os.write(terminal, commands.encode() + b"\n")
        until(b"\rready> ", "prompt")
        shown = b""
        os.write(terminal, b"stratamq membersh\t")
        until(b"membership", "noun")
        shown = b""
        os.write(terminal, b" li\t")
        until(b"list", "verb")
        os.write(terminal, b"\x15exit\n")
    finally:
        os.close(terminal)
        os.waitpid(child, 0)
