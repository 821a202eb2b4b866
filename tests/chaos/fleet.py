"""The row ``fleet``: 20 000 clients with wills die at once; each will reaches each watcher once.

The clients run in four processes over all edges. These processes are killed together, and in every other run (odd
seeds) the edge and the storage node of the schedule right after them. Watchers are at edges that stay alive: at QoS 0,
where a repeat may neither lose nor duplicate a message, and one with a stored session at QoS 1.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import trio

from stratamq.history.client import Address
from tests.chaos.chaos_result import Result
from tests.chaos.real_cluster import RealCluster
from tests.chaos.schedule import Schedule, tier_of
from tests.patience import PATIENCE_S

__all__ = ["OPEN_FILES", "SETTINGS", "run_fleet"]

CLIENTS = 20_000
OPEN_FILES = 8_192  # of an edge, and of a process of clients
SETTINGS = ("storage.queue_messages_max=50000",)  # the wills of all clients fit into the queue of a slow reader
PROCESSES = 4
OPENING_MAX = 50  # CONNECTs of one process at once
CONNECTED_S = 600.0  # for all clients
QUIET_S = 30.0  # without a further copy: more than a lease and a failover on a slow machine
POLL_S = 0.5
LONGEST_S = 600.0
PUBLISH, PUBACK, SUBSCRIBE = 0x30, 0x40, 0x82
DUP = 0x08


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("!H", len(data)) + data


def _packet(first: int, body: bytes) -> bytes:
    assert len(body) < 128 * 128
    size = bytes((len(body),)) if len(body) < 128 else bytes((len(body) & 127 | 128, len(body) >> 7))
    return bytes((first,)) + size + body


def _connect(client_id: str, will_topic: str = "", *, clean: bool = True) -> bytes:
    flags = (2 if clean else 0) | (0x0C if will_topic else 0)  # the will at QoS 1
    will = _text(will_topic) + _text("x") if will_topic else b""
    return _packet(0x10, _text("MQTT") + bytes((4, flags)) + b"\0\0" + _text(client_id) + will)


class Watcher:
    """A subscriber that counts the copies of each will."""

    def __init__(self, broker: Address, name: str, run: str, qos: int) -> None:
        self.copies: Counter[bytes] = Counter()  # by topic, without those marked DUP
        self.last = time.monotonic()
        self.closed = False
        self._socket = socket.create_connection(broker, timeout=LONGEST_S)
        self.name = f"watcher-{name}-at-{broker[1]}"
        self._socket.sendall(_connect(self.name, clean=not qos))
        self._socket.sendall(_packet(SUBSCRIBE, b"\0\1" + _text(f"fleet/{run}/+") + bytes((qos,))))
        self._file = self._socket.makefile("rb")
        for first in (0x20, 0x90):
            assert self._read()[0] == first
        threading.Thread(target=self._watch, daemon=True).start()

    def _read(self) -> tuple[int, bytes]:
        first, size, shift = self._file.read(1)[0], 0, 0
        while (byte := self._file.read(1)[0]) >= 128:
            size |= (byte & 127) << shift
            shift += 7
        return first, self._file.read(size | byte << shift)

    def _watch(self) -> None:
        with contextlib.suppress(OSError, IndexError, ValueError):
            while True:
                first, body = self._read()
                if first & 0xF0 != PUBLISH:
                    continue
                size = struct.unpack_from("!H", body)[0]
                self.copies[body[2 : 2 + size]] += not first & DUP
                self.last = time.monotonic()
                if first & 6:
                    self._socket.sendall(_packet(PUBACK, body[2 + size : 4 + size]))
        self.closed = True

    def close(self) -> None:
        """End the connection."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def waits_for(self, topics: set[bytes]) -> bool:
        """Return whether a will of these topics may still come."""
        return not self.closed and not topics <= dict(self.copies).keys()

    def faults(self, topics: set[bytes]) -> dict[str, int]:
        """Return how many wills of clients that were connected did not come, and how many of all came twice."""
        copies = dict(self.copies)
        found = {"wills_missing": len(topics - copies.keys()), "wills_twice": sum(n > 1 for n in copies.values())}
        if self.closed:
            found["watchers_closed"] = 1
        return {name: count for name, count in found.items() if count}


@contextlib.contextmanager
def _crowd(brokers: Sequence[Address], run: str, clients: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Start the processes of the clients; they are killed at the end at the latest."""
    where = ",".join(f"{host}:{port}" for host, port in brokers)
    command = [sys.executable, "-m", "tests.chaos.fleet", where, run]
    share = -(-clients // PROCESSES)
    crowds = [
        subprocess.Popen(
            [*command, str(first), str(min(share, clients - first))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for first in range(0, clients, share)
    ]
    try:
        yield crowds
    finally:
        for crowd in crowds:
            crowd.kill()
            crowd.wait()


def _await_connected(crowds: list[subprocess.Popen[str]]) -> set[bytes]:
    """Return the topics of the wills of all clients, once each is connected."""
    topics: set[bytes] = set()
    for crowd in crowds:
        assert crowd.stdout is not None
        line = crowd.stdout.readline()
        if not line:
            raise ConnectionError("the clients of the fleet could not connect")
        topics.update(topic.encode() for topic in json.loads(line))
    return topics


async def run_fleet(cluster: RealCluster, schedule: Schedule, kept: Path, clients: int = CLIENTS) -> Result:
    """Run the row once and check the watchers' messages; logs and metrics of a failure go to ``kept``."""
    killed = schedule.faults[0].nodes if schedule.seed % 2 else ()
    run = f"{schedule.seed:x}"
    edges = [name for name in cluster.nodes() if tier_of(name) == "edge"]
    brokers = dict(zip(edges, cluster.brokers(), strict=True))
    alive = [broker for name, broker in brokers.items() if name not in killed]
    before = len(cluster.ended)
    places = (alive[0], 0), (alive[-1], 0), (alive[0], 1)
    watchers = [Watcher(broker, f"{run}-{number}", run, qos) for number, (broker, qos) in enumerate(places)]
    slow: list[str] = []
    try:
        with _crowd(list(brokers.values()), run, clients) as crowds:
            with trio.fail_after(CONNECTED_S):
                topics = await trio.to_thread.run_sync(_await_connected, crowds, abandon_on_cancel=True)
            for crowd in crowds:
                crowd.kill()
            died = time.monotonic()
            for name in killed:
                await cluster.kill(name)
            await _watched(watchers, topics, died)
        for name in killed:
            await cluster.restart(name)
        with trio.move_on_after(LONGEST_S) as waited:
            await cluster.recovered()
        if waited.cancelled_caught:
            slow.append(f"not recovered: {cluster.missing}")
        each = [watcher.faults(topics) for watcher in watchers]
    finally:
        for watcher in watchers:
            watcher.close()
    found: Counter[str] = Counter()
    for watcher, faults in zip(watchers, each, strict=True):
        found.update(faults)
        last_s = watcher.last - died
        print(f"  {watcher.name}: the last will came after {last_s:.1f} s; {faults or 'each came once'}", flush=True)
    if found or slow:
        folder = kept / f"fleet-{schedule.seed}"
        shutil.copytree(cluster.folder / "logs", folder, dirs_exist_ok=True)
        for name, page in await trio.to_thread.run_sync(_pages, cluster):
            (folder / f"{name}.metrics").write_bytes(page)
    return Result(
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M"),
        row=schedule.row,
        seed=schedule.seed,
        workload="fleet",
        shape=str(cluster.shape),
        faults=(f"{clients} clients killed", *(f"kill {name}" for name in killed)),
        accepted=0,
        checked={"will_once": clients * len(watchers)},
        found=dict(found),
        waits=(),
        slow=tuple(slow),
        ended=tuple(cluster.ended[before:][:3]),
    )


def _pages(cluster: RealCluster) -> list[tuple[str, bytes]]:
    """Return the metrics page of each node."""
    pages = []
    for name, node in json.loads((cluster.folder / "up.json").read_text())["nodes"].items():
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://{node['addresses']['metrics']}/metrics", timeout=PATIENCE_S) as page,
        ):
            pages.append((name, page.read()))
    return pages


async def _watched(watchers: list[Watcher], topics: set[bytes], died: float) -> None:
    """Wait until each watcher has every will, or the time has passed; then while copies still arrive."""
    while time.monotonic() - died < LONGEST_S and any(watcher.waits_for(topics) for watcher in watchers):
        await trio.sleep(POLL_S)
    while time.monotonic() - max(died, *(watcher.last for watcher in watchers)) < QUIET_S:
        await trio.sleep(POLL_S)


def main() -> None:
    """Connect the clients of one process, print the topics of their wills, and run until stdin ends.

    A client with a failed CONNECT is replaced by one of another name: its will may have been stored.
    """
    where, run, first, count = sys.argv[1:]
    brokers = [(host, int(port)) for host, _, port in (one.rpartition(":") for one in where.split(","))]
    names = [str(number) for number in range(int(first), int(first) + int(count))]
    sockets: list[socket.socket] = []
    topics: list[str] = []
    while names:
        some, names = names[:OPENING_MAX], names[OPENING_MAX:]
        opening = [(name, _opened(brokers[int(name.partition(".")[0]) % len(brokers)], run, name)) for name in some]
        for name, each in opening:
            if each is not None and _is_accepted(each):
                sockets.append(each)
                topics.append(f"fleet/{run}/{name}")
            else:
                names.append(name + ".")
    print(json.dumps(topics), flush=True)
    sys.stdin.read()


def _opened(broker: Address, run: str, name: str) -> socket.socket | None:
    """Return a socket on which CONNECT was sent."""
    try:
        opened = socket.create_connection(broker, timeout=30.0)
        opened.sendall(_connect(f"{run}-{name}", f"fleet/{run}/{name}"))
    except OSError:
        return None
    return opened


def _is_accepted(opened: socket.socket) -> bool:
    try:
        return opened.recv(4) == b"\x20\x02\0\0"
    except OSError:
        return False


if __name__ == "__main__":
    main()
