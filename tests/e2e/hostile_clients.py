"""Hostile MQTT clients in one process: ``hostile_clients.py PLAIN WS COUNT SECONDS``.

Each kind tries to exhaust the edge's memory or to stall it; a disconnected client reconnects half a second later.
Prints the connects and disconnects of each kind as JSON.
"""

import itertools
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from functools import partial

from tests.clients import packets
from tests.clients.packets import text

RETRY_S = 0.5
STEP_S = 0.05
LATE_S = 60.0  # for which a machine that is busy may throw them out
SEND_BYTES = 64 * 1024


connect = partial(packets.connect, version=5, keep_alive_s=60)
publish = partial(packets.publish, version=5)
subscribe = partial(packets.subscribe, version=5)


def frame(data: bytes, opcode: int = 2, final: bool = True) -> bytes:
    """Return a masked WebSocket frame of at most 125 bytes, its mask zero."""
    return bytes([(0x80 if final else 0) | opcode, 0x80 | len(data)]) + bytes(4) + data


UPGRADE = (
    b"GET /mqtt HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
)
PROPERTIES = b"".join(b"\x26" + text(b"key") + text(b"value") for _ in range(5000))
NEVER_RELEASED = b"".join(publish(b"hostile/2", b"x" * 1000, 2, number) for number in range(1, 200))

# kind: (bytes at first, bytes again and again, whether it reads, whether over WebSocket)
Kind = tuple[Callable[[bytes], bytes], bytes, bool, bool]
KINDS: dict[str, Kind] = {
    "slow_reader": (lambda name: connect(name) + subscribe(b"flood/#", 0), b"", False, False),
    "never_acking": (lambda name: connect(name) + subscribe(b"flood/#", 1), b"\xc0\0", True, False),
    "flood": (connect, publish(b"flood/1", b"x" * 4000, 1, 1) * 4, True, False),
    "no_pubrel": (connect, NEVER_RELEASED, True, False),
    "declares_256_mib": (lambda _: b"\x10\xff\xff\xff\x7f", b"x" * 1000, False, False),
    "declares_after_connect": (lambda name: connect(name) + b"\x30\xff\xff\xff\x7f", b"x" * 1000, False, False),
    "properties_in_connect": (lambda name: connect(name, properties=PROPERTIES), b"", True, False),
    "properties_in_publish": (connect, publish(b"hostile/p", b"", properties=PROPERTIES), True, False),
    "slashes": (lambda name: connect(name) + publish(b"/" * 65_000, b""), b"", True, False),
    "slashes_filter": (connect, subscribe(b"/" * 65_000, 0), True, False),
    "half_a_connect": (lambda name: connect(name)[:-1], b"", True, False),
    "one_byte_fragments": (
        lambda name: UPGRADE + frame(connect(name)),
        frame(b"\x30", 2, False) + frame(b"\xff", 0, False) + frame(b"\xff", 0, False) * 500,
        True,
        True,
    ),
    "pings": (lambda _: UPGRADE, frame(b"x" * 100, 9) * 200, False, True),
}


THROWN_OUT = (
    "no_pubrel",
    "declares_256_mib",
    "declares_after_connect",
    "slashes",
    "half_a_connect",
    "one_byte_fragments",
    "pings",
)  # some of each, at least


class Hostile:
    """One hostile client."""

    def __init__(self, number: int, kind: str, ports: tuple[int, int]) -> None:
        self.name = b"hostile-%d" % number
        self.kind = kind
        self.first, self.again, self.reads, websocket = KINDS[kind]
        self.port = ports[1] if websocket else ports[0]
        self.socket: socket.socket | None = None
        self.unsent = b""
        self.next_try = 0.0
        self.opened = self.ended = 0

    def step(self, now: float) -> None:
        """Connect again, or do a little more harm."""
        if self.socket is None:
            if now >= self.next_try:
                self.open()
            return
        try:
            if self.reads:
                while data := self.socket.recv(SEND_BYTES):
                    if len(data) < SEND_BYTES:
                        break
                else:
                    raise ConnectionResetError
        except BlockingIOError:
            pass
        except OSError:
            self.close(now)
            return
        try:
            if not self.unsent:
                self.unsent = self.again
            if self.unsent:
                self.unsent = self.unsent[self.socket.send(self.unsent[:SEND_BYTES]) :]
        except BlockingIOError:
            pass
        except OSError:
            self.close(now)

    def open(self) -> None:
        """Come in."""
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096 if not self.reads else 65536)
        self.socket.settimeout(5)
        try:
            self.socket.connect(("127.0.0.1", self.port))
            self.socket.setblocking(False)
            self.opened += 1
            self.unsent = self.first(self.name)
        except OSError:
            self.close(time.monotonic())

    def close(self, now: float) -> None:
        """Thrown out."""
        if self.socket is not None:
            self.socket.close()
            self.socket = None
            self.ended += 1
            self.next_try = now + RETRY_S


def all_thrown_out(clients: list[Hostile]) -> bool:
    """Return whether each kind came in, and some of each that is forbidden were ended."""
    return {one.kind for one in clients if one.opened} == {*KINDS} and {*THROWN_OUT} <= {
        one.kind for one in clients if one.ended
    }


def main(plain: int, websocket: int, count: int, seconds: float) -> None:
    """Run them all for a while, and until some of each kind that is forbidden were thrown out."""
    os.nice(5)  # the attackers share the machine with the edge
    kinds = itertools.cycle(KINDS)
    clients = [Hostile(number, next(kinds), (plain, websocket)) for number in range(count)]
    print("started", flush=True)
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end or (now < end + LATE_S and not all_thrown_out(clients)):
        for client in clients:
            client.step(now)
        time.sleep(max(0.0, STEP_S - (time.monotonic() - now)))
    totals: dict[str, list[int]] = {kind: [0, 0] for kind in KINDS}
    for client in clients:
        totals[client.kind][0] += client.opened
        totals[client.kind][1] += client.ended
    print(json.dumps(totals), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
