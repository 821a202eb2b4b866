"""Runs the lines of README.md's section about the three services, in a network of its own: fixed ports do no harm.

``python -m tests.stratamq.readme_lines FOLDER [--spread]`` in a fresh copy of the tree; ``--spread`` gives each node a
network namespace of its own and changes the hosts in the lines, and nothing else. Exit code 77: no namespaces here.
"""

import contextlib
import os
import re
import shlex
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from tests.chaos.namespaces import Namespaces, available, enter_own

SECTION = "## Run the tiers yourself"
SERVICE = re.compile(r"stratamq (router|storage|edge) ")
NODES = ("router-0", "storage-0", "edge-0")
CANNOT = 77
READY_S = 120.0


def lines_of(readme: str) -> list[str]:
    """Return the commands of the section, in order."""
    section = readme.partition(f"{SECTION}\n")[2].partition("\n## ")[0]
    return [line[4:] for line in section.splitlines() if line.startswith("    ")]


class Shell:
    """The terminals of one newcomer."""

    def __init__(self, folder: Path, network: Namespaces | None) -> None:
        self.folder = folder
        self.network = network
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("STRATAMQ_", "MAKE"))}
        self._environment = {**clean, "PYTHONPATH": str(folder)}  # this copy, not the tree that .venv was made for
        self._running: list[tuple[subprocess.Popen[bytes], Path]] = []

    def run(self, line: str) -> None:
        """Type a line; services and subscribers stay, everything else has to succeed."""
        service = SERVICE.search(line)
        if service is not None:
            self._start(line, f"{service[1]}-0")
            if service[1] == "edge":
                self._wait("ready", lambda: b"ready: " in self.output(-1))
        elif line.startswith("mosquitto_sub"):
            self._start(line, "")
            self._wait("subscribed", self._subscribed)
        else:
            subprocess.run(
                self._spread(line), shell=True, cwd=self.folder, env=self._environment, check=True, timeout=READY_S
            )

    def output(self, number: int) -> bytes:
        """Return what a line printed that runs still."""
        return self._running[number][1].read_bytes()

    def wait_for_message(self) -> None:
        """Wait until the subscriber has printed the message."""
        self._wait("received", lambda: self.output(-1) == b"hello/world Hello\n")

    def close(self) -> None:
        """End what was started."""
        for process, _ in self._running:
            process.terminate()
        for process, _ in self._running:
            process.wait(60)

    def _start(self, line: str, node: str) -> None:
        log = self.folder / f"terminal-{len(self._running)}.log"
        front = self.network.command(node) if self.network is not None and node else []
        with log.open("wb") as sink:
            command = [*front, *shlex.split(self._spread(line))]
            process = subprocess.Popen(
                command, cwd=self.folder, env=self._environment, stdout=sink, stderr=subprocess.STDOUT
            )
        self._running.append((process, log))

    def _spread(self, line: str) -> str:
        if self.network is None:
            return line
        if line.endswith("stratamq init cluster"):
            return line + "".join(f" --node {n.partition('-')[0]}/{n}={self.network.address(n)}" for n in NODES)
        return line.replace("-h localhost", f"-h {self.network.address('edge-0')}")

    def _subscribed(self) -> bool:
        front = self.network.command("edge-0") if self.network is not None else []
        ask = (
            "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9749/metrics', timeout=60).read().decode())"
        )
        if not front:
            with urllib.request.urlopen("http://127.0.0.1:9749/metrics", timeout=60) as page:
                text = str(page.read().decode())
        else:
            text = subprocess.run(
                [*front, sys.executable, "-c", ask], capture_output=True, text=True, check=True
            ).stdout
        return '\nstratamq_subscriptions{kind="ephemeral"} 1.0\n' in text

    def _wait(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + READY_S
        while not condition():
            ended = [log for process, log in self._running if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                words = "\n".join(f"{log.name}: {log.read_text()}" for _, log in self._running)
                raise AssertionError(f"not {what}:\n{words}")
            time.sleep(0.05)


def main(folder: Path, spread: bool) -> int:
    """Run all lines; returns the exit code."""
    try:
        enter_own()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"no network namespace: {error}")
        return CANNOT
    network = Namespaces(NODES) if spread else None
    with contextlib.ExitStack() as stack:
        if network is not None:
            stack.callback(network.close)
        shell = Shell(folder, network)
        stack.callback(shell.close)
        for line in lines_of((folder / "README.md").read_text()):
            print(line, flush=True)
            shell.run(line)
        shell.wait_for_message()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), "--spread" in sys.argv) if available() else CANNOT)
