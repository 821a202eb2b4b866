"""Datagrams between a socket and a core: read, handled and answered in batches.

One wake-up per datagram would dominate the cost, so up to 64 are read at once. Datagrams that the kernel does not
accept are dropped and counted: QoS 1 repeats them.
"""

from __future__ import annotations

import ipaddress
import socket
from collections import Counter
from typing import Protocol

import trio

from gateways.datagrams.messages import (
    DATAGRAM_BYTES_MAX,
    Datagram,
    Endpoint,
    MalformedDatagram,
    PubAck,
    decode,
    encode,
)
from gateways.datagrams.node_events import Sent
from gateways.datagrams.sealed import SEALED_BYTES, SealedPort
from gateways.datagrams.subscribers import DatagramPeer

__all__ = ["BATCH", "DatagramReceiver", "DatagramSocket", "bind_udp", "endpoint_of", "read_packet"]

BATCH = 64
ADDRESSES_MAX = 65_536  # cached address conversions
READ_BYTES_MAX = 65_536  # an oversized datagram is read completely: its request number is answered
BUFFER_BYTES = 4 * 1024 * 1024  # socket buffers, each way; the kernel may grant less


class DatagramReceiver(Protocol):
    """Receiver of a datagram: peer, name, whether the address is proved, packet, length."""

    def __call__(self, peer: DatagramPeer, name: str, is_proved: bool, packet: Datagram, length: int) -> None: ...


def endpoint_of(text: str) -> Endpoint:
    """Return the endpoint of ``ip:port``.

    Raises:
      ValueError: The text is not ip:port.
    """
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise ValueError(f"{text!r} is not ip:port")
    try:
        return Endpoint(ipaddress.ip_address(host.strip("[]")).packed, int(port))
    except ValueError:
        raise ValueError(f"{text!r} is not ip:port; host names are not supported") from None


def bind_udp(host: str, port: int) -> socket.socket:
    """Return a bound non-blocking socket.

    Raises:
      OSError: The address cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_DGRAM)
    try:
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            made.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
        made.setblocking(False)
        made.bind((host, port))
    except OSError:
        made.close()
        raise
    return made


def read_packet(data: bytes, bytes_max: int, counts: Counter[str]) -> Datagram | None:
    """Return the packet of a datagram, with ``RejectedRequest`` for one to refuse; None, counted, for an invalid one.

    Args:
      data: Without security overhead.
      bytes_max: Bound of a packet.
      counts: Counts the reason.
    """
    try:
        return decode(data, bytes_max)
    except MalformedDatagram as error:
        counts[f"malformed_{str(error).replace(' ', '_')}"] += 1
        return error.rejected


class DatagramSocket:
    """One UDP socket, in clear or sealed.

    Attributes:
        counts: Datagrams dropped, by reason, and in and out.
    """

    def __init__(self, bound: socket.socket, sealed: SealedPort | None = None) -> None:
        self.counts: Counter[str] = Counter() if sealed is None else sealed.counts
        self.sealed = sealed
        self._socket = bound
        self._buffer = bytearray(READ_BYTES_MAX)
        self._view = memoryview(self._buffer)
        self._addresses: dict[tuple[str, int], Endpoint] = {}  # in the kernel's form
        self._targets: dict[Endpoint, tuple[str, int]] = {}  # in the kernel's form
        self._bytes_max = DATAGRAM_BYTES_MAX - (SEALED_BYTES if sealed is not None else 0)

    @property
    def endpoint(self) -> Endpoint:
        """Return the socket's own address."""
        host, port = self._socket.getsockname()[:2]
        return Endpoint(ipaddress.ip_address(host).packed, port)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """No effect: there are no handshakes."""
        task_status.started()

    async def flush(self) -> None:
        """No effect: packets are sent at once."""

    def prove(self, peer: DatagramPeer) -> None:
        """Accept a session's new address."""
        if self.sealed is not None:
            self.sealed.prove(peer)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    async def readable(self) -> None:
        """Wait for a datagram."""
        await trio.lowlevel.wait_readable(self._socket)

    def read(self, now: float, received: DatagramReceiver) -> bool:
        """Read up to BATCH datagrams; return whether there may be more."""
        receive, buffer, view = self._socket.recvfrom_into, self._buffer, self._view
        for _ in range(BATCH):
            try:
                length, address = receive(buffer)
            except BlockingIOError:
                return False
            except OSError:
                self.counts["unreachable"] += 1  # an ICMP error for a sent datagram
                continue
            self.counts["in"] += 1
            self._take(now, self._endpoint(address), bytes(view[:length]), received)
        return True

    def _take(self, now: float, endpoint: Endpoint, data: bytes, received: DatagramReceiver) -> None:
        peer, name, is_proved, packet_bytes = DatagramPeer(endpoint), "", False, data
        if self.sealed is not None:
            opened = self.sealed.receive(now, endpoint, data)
            if self.sealed.replies:
                self._flush(self.sealed)
            if opened is None:
                return
            peer, name, is_proved, packet_bytes = opened
        packet = read_packet(packet_bytes, self._bytes_max, self.counts)
        if packet is not None:
            received(peer, name, is_proved, packet, len(data))

    def send(self, now: float, sent: Sent) -> None:
        """Send a packet, if its size and session permit."""
        data = encode(sent.packet)
        length = len(data) + (SEALED_BYTES if self.sealed is not None else 0)
        if len(data) > self._bytes_max:
            self.counts["too_large"] += 1
        elif sent.bytes_max and length > sent.bytes_max:
            self.counts["unproved"] += 1
        elif self.sealed is None:
            self._put(sent.peer.endpoint, data)
        else:
            made = self.sealed.send(now, sent.peer, data, isinstance(sent.packet.body, PubAck))
            if self.sealed.replies:
                self._flush(self.sealed)
            if made is not None:
                self._put(sent.peer.endpoint, made)
            elif sent.peer.session:
                self.counts["no_session"] += 1

    def _flush(self, sealed: SealedPort) -> None:
        """Send handshake datagrams."""
        replies, sealed.replies = sealed.replies, []
        for endpoint, data in replies:
            self._put(endpoint, data)

    def _put(self, endpoint: Endpoint, data: bytes) -> None:
        target = self._targets.get(endpoint) or self._target(endpoint)
        try:
            self._socket.sendto(data, target)
            self.counts["out"] += 1
        except BlockingIOError:
            self.counts["socket_full"] += 1
        except OSError:
            self.counts["unreachable"] += 1

    def _target(self, endpoint: Endpoint) -> tuple[str, int]:
        if len(self._targets) >= ADDRESSES_MAX:
            self._targets.clear()
        host = socket.inet_ntop(socket.AF_INET if len(endpoint.ip) == 4 else socket.AF_INET6, endpoint.ip)
        target = self._targets[endpoint] = (host, endpoint.port)
        return target

    def _endpoint(self, address: tuple[str, int]) -> Endpoint:
        key = address[:2]
        known = self._addresses.get(key)
        if known is None:
            if len(self._addresses) >= ADDRESSES_MAX:
                self._addresses.clear()
            host = key[0].partition("%")[0]
            known = self._addresses[key] = Endpoint(ipaddress.ip_address(host).packed, key[1])
        return known
