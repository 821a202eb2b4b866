"""How long partitions do not answer when a storage process is killed or stopped, and whether messages are lost.

Clients with durable sessions send themselves numbered QoS 1 messages, one at a time; each depends on its own partition
only. Storage processes are killed with -9 in rotation (``--term``: stopped gracefully), each when every partition is
complete again; `stratamq up` restarts them. Printed per kill: the longest and the median gap between two
acknowledgements, of the clients whose partition had the dead node as its primary, as a backup, or had no copy there.
A lost, repeated or reordered message fails the run.

    python -m bench.failover [--kills 10] [--clients 60] [--storages 4] [--replicas 3] [--term]
"""

import argparse
import json
import os
import selectors
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from tests.clients import packets
from tests.e2e.local_cluster import LocalCluster, local_cluster
from wire.messages.cluster_map import partition_of

PAUSE_S = 0.02  # between two messages of a client
AFTER_S = 5.0  # watched after a kill, at least
WHOLE_S = 60.0  # until every partition has all its copies again, at most
ROLES = ("primary", "backup", "nothing")


class Client:
    """One durable session that talks to itself."""

    def __init__(self, port: int, number: int, selector: selectors.BaseSelector) -> None:
        self.number = number
        self.name = f"failover-{number}"
        self.sent = self.acknowledged = self.received = 0
        self.send_at = float("inf")
        self.last_at = time.monotonic()
        self.gap_s = 0.0
        self.faults: list[str] = []
        self._splitter = packets.Splitter()
        self.socket = socket.create_connection(("127.0.0.1", port))
        name = self.name.encode()
        self._topic = name
        self.socket.sendall(packets.connect(name, 5, packets.session_expiry(3600)))
        self.socket.sendall(packets.subscribe(name, 1, 5))
        self.socket.setblocking(False)
        selector.register(self.socket, selectors.EVENT_READ, self)

    @property
    def done(self) -> bool:
        """True when every sent message has returned and was acknowledged."""
        return self.acknowledged == self.received == self.sent

    def send(self) -> None:
        """Send the next message."""
        self.sent += 1
        identifier = self.sent % 65535 + 1
        self.socket.sendall(packets.publish(self._topic, struct.pack(">Q", self.sent), 1, identifier, 5))
        self.send_at = float("inf")

    def readable(self, now: float) -> None:
        """Process received input."""
        piece = self.socket.recv(65536)
        if not piece:
            raise ConnectionError(f"client {self.number} was closed")
        for packet in self._splitter.feed(piece):
            self._packet(packet, now)

    def _packet(self, packet: bytes, now: float) -> None:
        kind = packet[0] >> 4
        if kind == 14 or (kind == 2 and packet[3]):
            raise ConnectionError(f"client {self.number}: refused or disconnected, {packet.hex()}")
        if kind in (4, 9):
            self.gap_s = max(self.gap_s, now - self.last_at if kind == 4 else 0.0)
            self.last_at = now
            self.acknowledged += kind == 4
            self.send_at = now + PAUSE_S
            if kind == 4 and len(packet) > 4 and packet[4] >= 0x80:
                self.faults.append(f"PUBACK {packet[4]:#x}")
        elif kind == 3:
            at = 4 + len(self._topic)  # every packet is shorter than 128
            (number,) = struct.unpack(">Q", packet[-8:])
            if number != self.received + 1:
                self.faults.append(f"got {number} after {self.received}, DUP {packet[0] >> 3 & 1}")
            self.received = max(number, self.received)
            self.socket.sendall(packets.ack(0x40, int.from_bytes(packet[at : at + 2], "big")))


class Load:
    """All clients in one thread."""

    def __init__(self, port: int, count: int) -> None:
        self._selector = selectors.DefaultSelector()
        self.clients = [Client(port, number, self._selector) for number in range(count)]

    def run(self, seconds: float, *, sending: bool = True) -> None:
        """Go on for so long; without sending, until all is done."""
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            for key, _ in self._selector.select(0.005):
                key.data.readable(now)
            for client in self.clients:
                if sending and client.send_at <= now:
                    client.send()
            if not sending and all(client.done for client in self.clients):
                return

    def gaps(self) -> dict[str, float]:
        """Return each client's longest gap since the last call, open ones included."""
        now = time.monotonic()
        gaps = {client.name: max(client.gap_s, now - client.last_at) for client in self.clients}
        for client in self.clients:
            client.gap_s = 0.0
        return gaps


def placements(cluster: LocalCluster, load: Load) -> list[dict[str, object]]:
    """Ask for the placements of all partitions while the clients go on."""
    command = [sys.executable, "-m", "stratamq", "ring", "show", "-o", "json", "--data", str(cluster.data)]
    with tempfile.TemporaryFile() as answer:
        process = subprocess.Popen(command, stdout=answer, stderr=subprocess.DEVNULL)
        while process.poll() is None:
            load.run(0.05)
        answer.seek(0)
        found: list[dict[str, object]] = json.loads(answer.read())["partitions"] if process.returncode == 0 else []
    return found


def until_whole(cluster: LocalCluster, load: Load, replicas: int) -> tuple[list[dict[str, object]], float]:
    """Go on until every partition has all its copies in sync; return the placements and how long it took."""
    start = time.monotonic()
    while time.monotonic() < start + WHOLE_S:
        found = placements(cluster, load)
        if found and all(len(placement["in_sync"]) >= replicas for placement in found):  # type: ignore[arg-type]
            return found, time.monotonic() - start
    raise TimeoutError(f"some partition lacks a copy after {WHOLE_S} s")


def by_role(found: list[dict[str, object]], gaps: dict[str, float], node: str) -> Iterator[tuple[str, list[float]]]:
    """Sort gaps by the dead node's role for the client's partition."""
    sorted_gaps: dict[str, list[float]] = {role: [] for role in ROLES}
    for name, gap in gaps.items():
        placement = found[partition_of(name, len(found))]
        backup = node in placement["in_sync"]  # type: ignore[operator]
        role = "primary" if placement["primary"] == node else "backup" if backup else "nothing"
        sorted_gaps[role].append(gap)
    yield from sorted_gaps.items()


def main() -> int:
    """Kill, measure, check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--clients", type=int, default=60)
    parser.add_argument("--storages", type=int, default=4)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--term", action="store_true")
    options = parser.parse_args()
    number = signal.SIGTERM if options.term else signal.SIGKILL
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, {options.storages} storage nodes")
    every: dict[str, list[float]] = {role: [] for role in ROLES}
    flags = ["--edges", "1", "--storages", str(options.storages), "--set", f"router.replicas={options.replicas}"]
    with local_cluster(*flags) as cluster:
        load = Load(cluster.port(0, "plain"), options.clients)
        if options.storages > options.replicas:  # the first placement was made when there were enough nodes for it
            cluster.admin("ring", "rebalance")
        found, _ = until_whole(cluster, load, options.replicas)
        load.gaps()
        load.run(2)
        print(f"undisturbed: longest gap {max(load.gaps().values()) * 1e3:.0f} ms")
        for kill in range(options.kills):
            node = f"storage-{kill % options.storages}"
            os.kill(cluster.pid(node), number)
            load.run(AFTER_S)
            after, whole_s = until_whole(cluster, load, options.replicas)
            parts = []
            for role, gaps in by_role(found, load.gaps(), node):
                if gaps:
                    every[role] += gaps
                    parts.append(f"{role} {max(gaps):.2f} ({statistics.median(gaps):.2f}, {len(gaps)})")
            print(
                f"{number.name} {kill + 1}, {node}: {'; '.join(parts)}; whole after {AFTER_S + whole_s:.1f} s",
                flush=True,
            )
            found = after
        load.run(20, sending=False)
    sent = sum(client.sent for client in load.clients)
    faults = [f"client {client.number}: {fault}" for client in load.clients for fault in client.faults]
    faults += [
        f"client {c.number}: sent {c.sent}, PUBACK {c.acknowledged}, received {c.received}"
        for c in load.clients
        if not c.done
    ]
    for role, gaps in every.items():
        if gaps:
            print(f"node was {role}: worst gap {max(gaps):.2f} s, median {statistics.median(gaps):.2f} s")
    print(f"{sent} messages; {len(faults)} faults {faults[:10]}")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
