"""A command at its own terminal, where a test types its answers."""

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Sequence

__all__ = ["at_terminal"]

TIMEOUT_S = 60.0
CONTROLLING = "import os, sys; os.login_tty(0); os.execv(sys.argv[1], sys.argv[1:])"  # getpass opens it as /dev/tty


def at_terminal(command: Sequence[str], *answers: tuple[str, str]) -> tuple[int, str]:
    """Run a command; return its exit code and all output of the terminal.

    Args:
        command: Its program, whole path, and arguments.
        answers: Prompts, in their order, and the input for each: typed after the prompt, because a
            password prompt discards earlier input.
    """
    ours, theirs = pty.openpty()
    run = [sys.executable, "-c", CONTROLLING, *command]
    shown, typed, deadline = b"", 0, time.monotonic() + TIMEOUT_S
    try:
        with subprocess.Popen(run, stdin=theirs, stdout=theirs, stderr=theirs) as process:
            os.close(theirs)
            left = list(answers)
            while True:
                assert select.select([ours], [], [], max(0.0, deadline - time.monotonic()))[0], shown
                try:
                    data = os.read(ours, 4096)
                except OSError:  # EIO: the last process has closed it
                    break
                shown += data
                if left and (at := shown.find(left[0][0].encode(), typed)) >= 0:
                    typed = at + len(left[0][0])
                    os.write(ours, left.pop(0)[1].encode() + b"\n")
            assert not left, (left, shown)
            return process.wait(TIMEOUT_S), shown.decode()
    finally:
        os.close(ours)
