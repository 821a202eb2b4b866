"""Count loopback traffic: datagrams, and the bytes and MQTT packets of TCP connections, from a capture.

A packet socket (``AF_PACKET``) receives every frame of ``lo``; it needs CAP_NET_RAW. Frames dropped by the kernel
end the count with an error, because a result would be too small. IPv4 only, as the loopback addresses of the benches.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter, defaultdict
from typing import NamedTuple

__all__ = ["Capture", "Datagram", "mqtt_packets"]

ALL = 0x0003  # ETH_P_ALL
IP = 0x0800
OUTGOING = 4  # PACKET_OUTGOING: each frame of lo is seen once going out and once coming in
SOL_PACKET, STATISTICS = 263, 6
BUFFER_BYTES = 64 * 1024 * 1024
FRAME_BYTES = 1 << 17
UDP, TCP = 17, 6
SO_RCVBUFFORCE = 33


class Datagram(NamedTuple):
    """One UDP datagram on loopback."""

    source: int
    target: int
    data: bytes


class Capture:
    """Frames between ports of interest, for the length of a block.

    Attributes:
        datagrams: UDP, in order, if either port is in ``udp``.
        streams: TCP bytes by (source port, target port), in order, if either port is in ``tcp``.

    Raises:
        PermissionError: This process may not open a packet socket.
    """

    def __init__(self, udp: set[int] | None = None, tcp: set[int] | None = None) -> None:
        self.datagrams: list[Datagram] = []
        self.streams: dict[tuple[int, int], bytearray] = defaultdict(bytearray)
        self._ports = {UDP: udp or set(), TCP: tcp or set()}
        self._next: dict[tuple[int, int], int] = {}
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL))
        self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
        self._socket.bind(("lo", 0))
        self._socket.settimeout(0.1)
        self._is_over = threading.Event()
        self._is_torn = False
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Capture:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        if self._is_torn:
            raise RuntimeError("a segment is missing in the capture: nothing can be counted")
        seen, dropped = struct.unpack("II", self._socket.getsockopt(SOL_PACKET, STATISTICS, 8))
        self._socket.close()
        if dropped:
            raise RuntimeError(f"the capture missed {dropped} of {seen + dropped} frames: nothing can be counted")

    def _read(self) -> None:
        while True:
            try:
                frame, address = self._socket.recvfrom(FRAME_BYTES)
            except TimeoutError:
                if self._is_over.is_set():
                    return
                continue
            if address[1] == IP and address[2] != OUTGOING:
                self._take(memoryview(frame)[14:])

    def _take(self, packet: memoryview) -> None:
        head = (packet[0] & 15) * 4
        length = int.from_bytes(packet[2:4], "big")
        body = packet[head:length]
        protocol = packet[9]
        if protocol not in (UDP, TCP):
            return
        source, target = struct.unpack_from(">HH", body)
        if source not in self._ports[protocol] and target not in self._ports[protocol]:
            return
        if protocol == UDP:
            self.datagrams.append(Datagram(source, target, bytes(body[8:])))
        else:
            self._segment((source, target), body)

    def _segment(self, key: tuple[int, int], body: memoryview) -> None:
        """Append new bytes: loopback keeps the order, and repeats after a full window."""
        number = int.from_bytes(body[4:8], "big")
        data = body[(body[12] >> 4) * 4 :]
        if not data:
            return
        known = self._next.get(key, number)
        skip = (known - number) & 0xFFFFFFFF
        if skip >= 1 << 31:
            self._is_torn = True
        elif skip < len(data):
            self.streams[key] += data[skip:]
            self._next[key] = (number + len(data)) & 0xFFFFFFFF


def mqtt_packets(stream: bytes | bytearray) -> Counter[int]:
    """Return the MQTT packets of a stream, by their type (3: PUBLISH, 4: PUBACK), from a packet's beginning on."""
    found: Counter[int] = Counter()
    at = 0
    while at + 2 <= len(stream):
        kind, length, shift, start = stream[at] >> 4, 0, 0, at + 1
        while start < len(stream):
            byte = stream[start]
            length |= (byte & 127) << shift
            start, shift = start + 1, shift + 7
            if byte < 128:
                break
        if start + length > len(stream):
            break
        found[kind] += 1
        at = start + length
    return found
