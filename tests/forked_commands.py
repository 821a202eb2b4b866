"""Run ``stratamq`` commands without Python's import time: a process with loaded modules forks for each.

Each command has its own process, arguments, environment and descriptors, as from a shell; it shares only the
modules of ``PRELOADED``. Tests of a command's start use ``python -m stratamq`` itself.
"""

import array
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import random
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE_S

__all__ = ["run_command"]

# Late imports of commands; jobs, gateways and nodes import more.
PRELOADED = [
    "access.operators.cluster_arguments",
    "access.operators.commands",
    "admin.api",
    "admin.api_links",
    "admin.cursors",
    "admin.explain.client",
    "admin.explain.message",
    "admin.explain.explanation",
    "admin.explain.topic",
    "admin.scatter_gather",
    "admin.links",
    "admin.single_query",
    "admin.queries",
    "admin.explanations",
    "encodings.idna",
    "httpx",
    "importlib.metadata",
    "msgspec",
    "pydantic.json_schema",
    "pydantic._internal._schema_gather",
    "rich.console",
    "rich.table",
    "trio",
    "typer._adapters",
    "typer._click.decorators",
    "wire.links.operator_access",
    "wire.links.request",
    "wire.messages.client_rows",
    "wire.messages.node_rows",
    "wire.messages.topic_rows",
    "wire.messages.map_pages",
    "zoneinfo",
]
QUESTION_BYTES_MAX = 1 << 20


def run_command(
    *arguments: str, given: str = "", timeout_s: float = 5 * PATIENCE_S, environment: Mapping[str, str] = os.environ
) -> subprocess.CompletedProcess[str]:
    """Run ``stratamq`` with arguments and ``given`` as input; return its exit code, output and errors.

    Raises:
        subprocess.TimeoutExpired: It takes longer; it is killed.
    """
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(3)]
        files[0].write(given)
        files[0].seek(0)
        ours, theirs = map(stack.enter_context, socket.socketpair())
        question = json.dumps([arguments, str(Path.cwd()), dict(environment)]).encode()
        _server().sendmsg([question], *_rights([theirs.fileno(), *(file.fileno() for file in files)]))
        theirs.close()
        ours.settimeout(timeout_s)
        answers = ours.makefile("r")
        process = int(answers.readline())
        try:
            code = int(answers.readline())
        except TimeoutError:
            os.kill(process, signal.SIGKILL)
            raise subprocess.TimeoutExpired(arguments, timeout_s) from None
        for file in files:
            file.seek(0)
        return subprocess.CompletedProcess(arguments, code, files[1].read(), files[2].read())


def _rights(files: list[int]) -> tuple[list[tuple[int, int, Any]]]:
    return ([(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))],)


@functools.cache
def _server() -> socket.socket:
    """Return the way to the process that forks; it ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, QUESTION_BYTES_MAX)
    with theirs:
        subprocess.Popen(
            [sys.executable, "-m", "tests.forked_commands", str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            cwd=Path(__file__).parents[1],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
    return ours


def serve(questions: socket.socket) -> None:
    """Fork for each request, until the socket closes."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # an unwatched command's exit status is discarded
    while True:
        question, rights, _, _ = questions.recvmsg(QUESTION_BYTES_MAX, socket.CMSG_SPACE(4 * 4))
        if not question:
            return None
        files = array.array("i", rights[0][2])
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            questions.close()
            return _watch(*json.loads(question), *files)
        for file in files:
            os.close(file)


def _watch(arguments: list[str], folder: str, environment: dict[str, str], answers: int, *files: int) -> None:
    """Run one command in its own process; write its process identifier, and its exit code."""
    process = os.fork()
    if process:
        os.write(answers, b"%d\n" % process)
        _, status = os.waitpid(process, 0)
        os.write(answers, b"%d\n" % os.waitstatus_to_exitcode(status))
        signal.raise_signal(signal.SIGKILL)  # at once, without exit handlers
    os.close(answers)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    random.seed()
    sys.argv[1:] = arguments
    runpy.run_module("stratamq", run_name="__main__", alter_sys=True)


def preload() -> None:
    """Import the modules of commands, and exclude them from garbage collection."""
    package = importlib.import_module("stratamq.cli")
    for module in (*PRELOADED, *(f"stratamq.cli.{each.name}" for each in pkgutil.iter_modules(package.__path__))):
        importlib.import_module(module)
    gc.freeze()


if __name__ == "__main__":
    preload()
    serve(socket.socket(fileno=int(sys.argv[1])))
