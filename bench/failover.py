"""How long partitions are silent when a storage process is killed, on real processes, and whether anything is lost.

Clients with durable sessions send themselves numbered QoS 1 messages, one at a time; each depends on its own partition
only. Storage processes are killed with -9 in turn; `stratamq up` starts them again. Printed per kill: the longest gap
of any client between two acknowledgements, how many clients had one above half a second, and the longest gap of the
others. A lost, repeated or reordered message fails the run.

    python -m bench.failover [--kills 10] [--clients 60] [--every 8]
"""

import argparse
import os
import selectors
import socket
import struct
import sys
import time

from tests.e2e.local_cluster import local_cluster

GAP_S = 0.5  # above it a client counts as interrupted
PAUSE_S = 0.02  # between two messages of a client


class Client:
    """One durable session that talks to itself."""

    def __init__(self, port: int, number: int, selector: selectors.BaseSelector) -> None:
        self.number = number
        self.sent = self.acknowledged = self.received = 0
        self.send_at = float("inf")
        self.last_at = time.monotonic()
        self.gap_s = 0.0
        self.faults: list[str] = []
        self._data = b""
        self.socket = socket.create_connection(("127.0.0.1", port))
        name = f"failover-{number}".encode()
        body = b"\x00\x04MQTT\x05\x02\x00\x00\x05\x11" + struct.pack(">IH", 3600, len(name)) + name
        self._topic = struct.pack(">H", len(name)) + name
        self.socket.sendall(b"\x10" + bytes([len(body)]) + body)
        body = b"\x00\x01\x00" + self._topic + b"\x01"
        self.socket.sendall(b"\x82" + bytes([len(body)]) + body)
        self.socket.setblocking(False)
        selector.register(self.socket, selectors.EVENT_READ, self)

    @property
    def done(self) -> bool:
        """True when everything that was sent has come back and was acknowledged."""
        return self.acknowledged == self.received == self.sent

    def send(self) -> None:
        """Send the next message."""
        self.sent += 1
        identifier = self.sent % 65535 + 1
        body = self._topic + struct.pack(">HBQ", identifier, 0, self.sent)
        self.socket.sendall(b"\x32" + bytes([len(body)]) + body)
        self.send_at = float("inf")

    def readable(self, now: float) -> None:
        """Take what arrived."""
        piece = self.socket.recv(65536)
        if not piece:
            raise ConnectionError(f"client {self.number} was closed")
        self._data += piece
        while len(self._data) >= 2 and len(self._data) >= self._data[1] + 2:  # every packet is shorter than 128
            packet, self._data = self._data[: self._data[1] + 2], self._data[self._data[1] + 2 :]
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
            at = 2 + len(self._topic)
            (number,) = struct.unpack(">Q", packet[-8:])
            if number != self.received + 1:
                self.faults.append(f"got {number} after {self.received}, DUP {packet[0] >> 3 & 1}")
            self.received = max(number, self.received)
            self.socket.sendall(b"\x40\x02" + packet[at : at + 2])


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

    def gaps(self) -> list[float]:
        """Return each client's longest gap since the last call, open ones included."""
        now = time.monotonic()
        gaps = [max(client.gap_s, now - client.last_at) for client in self.clients]
        for client in self.clients:
            client.gap_s = 0.0
        return sorted(gaps)


def main() -> int:
    """Kill, measure, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--clients", type=int, default=60)
    parser.add_argument("--every", type=float, default=8.0, help="seconds between kills")
    parser.add_argument("--storages", type=int, default=3)
    options = parser.parse_args()
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, {options.storages} storage nodes")
    worst = 0.0
    with local_cluster("--edges", "1", "--storages", str(options.storages)) as cluster:
        load = Load(cluster.port(0, "plain"), options.clients)
        load.run(3)
        load.gaps()
        load.run(2)
        print(f"undisturbed: longest gap {load.gaps()[-1] * 1e3:.0f} ms")
        for kill in range(options.kills):
            node = f"storage-{kill % options.storages}"
            cluster.kill(node)
            load.run(options.every)
            gaps = load.gaps()
            worst = max(worst, gaps[-1])
            interrupted = [gap for gap in gaps if gap > GAP_S]
            print(
                f"kill {kill + 1}, {node}: gaps P10 {gaps[len(gaps) // 10]:.2f}, P50 {gaps[len(gaps) // 2]:.2f},"
                f" longest {gaps[-1]:.2f} s; {len(interrupted)} of {len(gaps)} clients"
                f" above {GAP_S} s, the longest of the others {max(gap for gap in [0, *gaps] if gap <= GAP_S):.2f} s",
                flush=True,
            )
        load.run(20, sending=False)
        sent = sum(client.sent for client in load.clients)
        faults = [f"client {client.number}: {fault}" for client in load.clients for fault in client.faults]
        faults += [
            f"client {c.number}: sent {c.sent}, PUBACK {c.acknowledged}, received {c.received}"
            for c in load.clients
            if not c.done
        ]
        print(f"{sent} messages, worst gap {worst:.2f} s; {len(faults)} faults {faults[:10]}")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
