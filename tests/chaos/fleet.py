"""The row ``fleet``: 20 000 clients with wills die in one moment; each will reaches each watcher once.

The clients live in four processes over all edges. Their processes are killed together, and in every other run (odd
seeds) the edge and the storage node of the schedule right behind them. Watchers are at edges that stay alive: at QoS 0,
where no copy may be lost to a repeat and none may come twice, and one with a stored session at QoS 1.
"""

from __future__ import annotations

import contextlib
import datetime
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import trio

from stratamq.history.client import Address
from tests.chaos.chaos_result import Result
from tests.chaos.real_cluster import RealCluster
from tests.chaos.schedule import Schedule, tier_of

__all__ = ["OPEN_FILES", "run_fleet"]

CLIENTS = 20_000
OPEN_FILES = 8_192  # of an edge, and of a process of clients
PROCESSES = 4
OPENING_MAX = 50  # CONNECTs of one process at once
CONNECTED_S = 600.0  # for all clients
QUIET_S = 15.0  # after the last will: more than a lease and a failover
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

    def __init__(self, broker: Address, run: str, qos: int) -> None:
        self.copies: Counter[bytes] = Counter()  # by topic, without those marked DUP
        self.last = time.monotonic()
        self.closed = False
        self._socket = socket.create_connection(broker, timeout=LONGEST_S)
        name = f"{run}-watcher-{broker[1]}-{qos}"
        self._socket.sendall(_connect(name, clean=not qos))
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

    def faults(self, clients: int) -> dict[str, int]:
        """Return how many wills did not come, and how many came more than once."""
        found = {"wills_missing": clients - len(self.copies), "wills_twice": sum(n > 1 for n in self.copies.values())}
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
        subprocess.Popen([*command, str(first), str(min(share, clients - first))], stdout=subprocess.PIPE, text=True)
        for first in range(0, clients, share)
    ]
    try:
        yield crowds
    finally:
        for crowd in crowds:
            crowd.kill()
            crowd.wait()


def _await_connected(crowds: list[subprocess.Popen[str]]) -> None:
    for crowd in crowds:
        assert crowd.stdout is not None
        if crowd.stdout.readline().strip() != "connected":
            raise ConnectionError("the clients of the fleet could not connect")


async def run_fleet(cluster: RealCluster, schedule: Schedule, clients: int = CLIENTS) -> Result:
    """Run the row once and judge what the watchers got."""
    killed = schedule.faults[0].nodes if schedule.seed % 2 else ()
    run = f"{schedule.seed:x}"
    edges = [name for name in cluster.nodes() if tier_of(name) == "edge"]
    brokers = dict(zip(edges, cluster.brokers(), strict=True))
    alive = [broker for name, broker in brokers.items() if name not in killed]
    before = len(cluster.ended)
    watchers = [Watcher(alive[0], run, 0), Watcher(alive[-1], run, 0), Watcher(alive[0], run, 1)]
    slow: list[str] = []
    try:
        with _crowd(list(brokers.values()), run, clients) as crowds:
            with trio.fail_after(CONNECTED_S):
                await trio.to_thread.run_sync(_await_connected, crowds, abandon_on_cancel=True)
            for crowd in crowds:
                crowd.kill()
            died = time.monotonic()
            for name in killed:
                await cluster.kill(name)
            await _quiet(watchers, died)
        for name in killed:
            await cluster.restart(name)
        with trio.move_on_after(LONGEST_S) as waited:
            await cluster.recovered()
        if waited.cancelled_caught:
            slow.append(f"not recovered: {cluster.missing}")
    finally:
        for watcher in watchers:
            watcher.close()
    found: Counter[str] = Counter()
    for watcher in watchers:
        found.update(watcher.faults(clients))
    print(f"  the last will came {max(watcher.last for watcher in watchers) - died:.1f} s after the clients died")
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


async def _quiet(watchers: list[Watcher], died: float) -> None:
    """Wait until nothing has come for a while."""
    while True:
        now = time.monotonic()
        if now - max(died, *(watcher.last for watcher in watchers)) > QUIET_S or now - died > LONGEST_S:
            return
        await trio.sleep(0.5)


def main() -> None:
    """Connect the clients of one process, say so, and wait to be killed."""
    where, run, first, count = sys.argv[1:]
    brokers = [(host, int(port)) for host, _, port in (one.rpartition(":") for one in where.split(","))]
    sockets: list[socket.socket] = []
    opening: list[socket.socket] = []
    for number in range(int(first), int(first) + int(count)):
        opening.append(socket.create_connection(brokers[number % len(brokers)], timeout=60.0))
        opening[-1].sendall(_connect(f"{run}-{number}", f"fleet/{run}/{number}"))
        if len(opening) == OPENING_MAX:
            sockets += _opened(opening)
    sockets += _opened(opening)
    print("connected", flush=True)
    time.sleep(CONNECTED_S + LONGEST_S)


def _opened(opening: list[socket.socket]) -> list[socket.socket]:
    opened = opening[:]
    opening.clear()
    for each in opened:
        answer = each.recv(4)
        if answer != b"\x20\x02\0\0":
            raise ConnectionError(f"CONNACK {answer!r}")
    return opened


if __name__ == "__main__":
    main()
