"""An HTTP server in its own process, which a test can stop (SIGSTOP), kill, and query for its requests."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["HttpChild", "http_child"]

# `folder` is the first argument; the handler's class is `Answers`.
BEFORE = """
import http.server, json, pathlib, sys, time
folder = pathlib.Path(sys.argv[1]) if sys.argv[1:] else None
class Quiet(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def body(self):
        return self.rfile.read(int(self.headers["Content-Length"]))
    def log_message(self, *_):
        pass
"""
BEHIND = """
class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    def handle_error(self, *_):
        pass
server = Server(("127.0.0.1", 0), Answers)
print(server.server_port, flush=True)
server.serve_forever()
"""


class HttpChild(NamedTuple):
    """One that runs."""

    port: int
    process: "subprocess.Popen[str]"

    def url(self, path: str) -> str:
        """Return the address of a path."""
        return f"http://127.0.0.1:{self.port}{path}"

    def stand_still(self) -> None:
        """Stop the process until ``go_on``: the kernel accepts connections, and no request is answered."""
        self.process.send_signal(signal.SIGSTOP)
        # one thread receives the signal, and the others run until then
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def go_on(self) -> None:
        """Let it answer again."""
        self.process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def http_child(answers: str, *arguments: str) -> Iterator[HttpChild]:
    """Run a server until the block ends.

    Args:
        answers: Source of ``class Answers(Quiet)``, a handler of ``http.server``.
        arguments: Of its process; the first one is its ``folder``.
    """
    command = [sys.executable, "-c", BEFORE + answers + BEHIND, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield HttpChild(int(process.stdout.readline()), process)
        finally:
            process.kill()
