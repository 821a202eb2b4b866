"""A cluster of real member processes on loopback: start, command, stop, kill."""

import base64
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from membership.keyring import generate_key, write_key_file
from tests.patience import PATIENCE_S

__all__ = ["Cluster", "MemberProcess"]

ROOT = Path(__file__).parents[2]


class MemberProcess:
    """One member process; its output is read while a test waits for a line."""

    def __init__(self, name: str, settings: dict[str, Any], pass_fds: tuple[int, ...] = ()) -> None:
        self.name = name
        self.started_at = time.time()
        self.lines: list[dict[str, Any]] = []
        self._buffer = b""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.membership.member_process", json.dumps({"name": name, "settings": settings})],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=pass_fds,
        )
        self.port = 0
        self.ready_at = 0.0

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def read(self, timeout_s: float) -> bool:
        """Read available output, waiting at most ``timeout_s``; False at the end or at the limit."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], max(0.0, timeout_s))[0]:
            return False
        part = os.read(self._process.stdout.fileno(), 65536)
        *whole, self._buffer = (self._buffer + part).split(b"\n")
        self.lines.extend(json.loads(line) for line in whole)
        return bool(part)

    def wait_for(self, what: str, timeout_s: float, **facts: object) -> dict[str, Any]:
        """Remove and return the first line with this event and these facts."""
        deadline = time.monotonic() + timeout_s
        wanted = {"what": what, **facts}
        while True:
            for position, line in enumerate(self.lines):
                if wanted.items() <= line.items():
                    return self.lines.pop(position)
            left_s = deadline - time.monotonic()
            if left_s <= 0 or (not self.read(left_s) and self._process.poll() is not None):
                raise AssertionError(f"{self.name}: no {wanted} within {timeout_s} s; has {self.lines[-5:]}")

    def ask(self, *words: str, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        """Send one command and return its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words).encode() + b"\n")
        self._process.stdin.flush()
        return self.wait_for("answer", timeout_s)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this process."""
        self._process.send_signal(number)

    def end(self) -> None:
        """End the process, even if it is stopped."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def cpu_seconds(self) -> float:
        """CPU time used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Cluster:
    """Members that share one key; all are ended at the end of the block."""

    def __init__(self, folder: Path, profile: str = "lan") -> None:
        self.folder = folder
        self.profile = profile
        self.key = generate_key()
        self.members: dict[str, MemberProcess] = {}

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members.values():
            member.end()

    @property
    def seed(self) -> str:
        """The first member's address."""
        return f"127.0.0.1:{next(iter(self.members.values())).port}"

    def start(self, name: str, *, seeds: tuple[str, ...] | None = None) -> MemberProcess:
        """Start a member with its own key file."""
        path = self.folder / f"{name}.keys"
        if not path.exists():
            write_key_file(path, [self.key])
        if seeds is None:
            seeds = (self.seed,) if self.members else ()
        settings = {"bind": "127.0.0.1:0", "seeds": seeds, "profile": self.profile, "key_file": str(path)}
        member = self.members[name] = MemberProcess(name, settings)
        ready = member.wait_for("ready", PATIENCE_S)
        member.port, member.ready_at = ready["port"], ready["at"]
        return member

    def start_many(self, count: int) -> None:
        """Start members m1, m2, ... and wait until all see all."""
        for number in range(1, count + 1):
            self.start(f"m{number}")
        self.wait_all_alive(60)

    def wait_all_alive(self, timeout_s: float) -> None:
        """Wait until all members consider exactly the present members alive, ignoring former ones."""
        deadline = time.monotonic() + timeout_s
        wanted = set(self.members)
        while True:
            views = {name: member.ask("members")["members"] for name, member in self.members.items()}
            if all({name for name, state in view.items() if state == "alive"} == wanted for view in views.values()):
                return
            assert time.monotonic() < deadline, views
            next(iter(self.members.values())).read(0.05)

    def known_dead_at(self, victim: str, timeout_s: float) -> float:
        """Wait until all other members know the death; return the wall time of the last."""
        others = [member for name, member in self.members.items() if name != victim]
        deadline = time.monotonic() + timeout_s
        told = [m.wait_for("NodeLeave", deadline - time.monotonic(), name=victim, state="dead") for m in others]
        return max(float(line["at"]) for line in told)

    def deaths(self) -> list[tuple[str, str]]:
        """Return every (observer, member) that gossip declared dead outside of ``known_dead_at``."""
        found = []
        for name, member in self.members.items():
            member.ask("counters")
            found += [(name, line["name"]) for line in member.lines if line.get("state") == "dead"]
        return found


def encode_key(key: bytes) -> str:
    """Encode a key like a key file."""
    return base64.b64encode(key).decode()
