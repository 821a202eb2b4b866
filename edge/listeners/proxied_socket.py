"""Sockets behind a load balancer: trusted senders of PROXY headers, and the read of the header before TLS starts.

Bytes are peeked first, and then exactly the header is read; the rest stays in the kernel. A connection that closes
before a byte of a client, such as a health check of the port, is not an error. Without an address in the header the
client has the balancer's address.
"""

import ipaddress
import socket
from collections.abc import Sequence

from edge.listeners.admission_control import WAITS, Admit, ConnectionSlot
from edge.listeners.proxy_protocol import HEADER_BYTES_MAX, InvalidProxyHeader, ProxyHeader
from edge.loop.options import FirstBytes

__all__ = ["ProxiedSocket", "TrustedProxies"]

CHECK, UNTRUSTED, WRONG = "proxy_checks", "proxy_untrusted", "proxy_headers_wrong"  # counters


class TrustedProxies:
    """The addresses of trusted senders of PROXY headers."""

    def __init__(self, networks: Sequence[str]) -> None:
        self._networks = [ipaddress.ip_network(network) for network in networks]

    def refusal(self, fd: int) -> str:
        """Return "" if the peer of a socket is trusted, else the name of the counter."""
        borrowed = socket.socket(fileno=fd)
        try:
            peer = borrowed.getpeername()
        except OSError:
            return CHECK  # closed already, as by a health check
        finally:
            borrowed.detach()
        return "" if isinstance(peer, tuple) and self.names(peer[0]) else UNTRUSTED

    def names(self, address: str) -> bool:
        """Whether an address is trusted; IPv4 may be written as IPv6."""
        parsed = ipaddress.ip_address(address.partition("%")[0])
        if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
            parsed = parsed.ipv4_mapped
        return any(parsed in network for network in self._networks)


class ProxiedSocket(FirstBytes):
    """One connection until its header was read.

    Attributes:
        outcome: Name of the counter if the connection ended here, "" if it did not.
        seat: The client's slot at the listener, after its header was read.
        waits: Its connection is queued: no data is read until ``judged``.
    """

    def __init__(self, versions: str, admit: Admit | None = None) -> None:
        """versions: "v1", "v2" or "any"; admit: called once a client, with "" for no address."""
        self.header = ProxyHeader(versions)
        self.outcome = ""
        self.seat: ConnectionSlot | None = None
        self.waits = False
        self._admit = admit

    @property
    def source(self) -> tuple[str, int] | None:
        """The client address in the header."""
        return self.header.source

    @property
    def common_name(self) -> str | None:
        """The name that the load balancer verified, "" for none; None: an invalid client name."""
        return self.header.common_name

    def judged(self, outcome: str, seat: ConnectionSlot | None) -> None:
        """End its wait: with a slot, or the name of the counter of its refusal."""
        self.waits, self.outcome, self.seat = False, outcome, seat

    def read(self, fd: int) -> int:
        """Read the received part of the header."""
        if self.waits:  # reading is paused: the peer closed
            return self._ended()
        if self.outcome or self.seat is not None:
            return FirstBytes.ENDED if self.outcome else FirstBytes.DONE
        borrowed = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK, 0, fd)
        try:
            return self._read(borrowed)
        except (BlockingIOError, InterruptedError):
            return FirstBytes.MORE
        except OSError:
            return self._ended()
        finally:
            borrowed.detach()

    def _read(self, borrowed: socket.socket) -> int:
        waiting = borrowed.recv(HEADER_BYTES_MAX, socket.MSG_PEEK)
        if not waiting:
            return self._ended()
        if self.header.complete:
            return self._admit_client()
        try:
            count = self.header.take(waiting)
        except InvalidProxyHeader:
            self.outcome = WRONG
            return FirstBytes.ENDED
        borrowed.recv(count)
        # A header without an address (UNKNOWN, LOCAL) may precede a health check. A check of the port sends no data
        # after it; a check of the service sends TLS or MQTT and is served [PROXY protocol, 2.2].
        return self._admit_client() if self.header.complete and len(waiting) > count else FirstBytes.MORE

    def _admit_client(self) -> int:
        """Admit the client by the address in the header, before its handshake."""
        if self._admit is not None:
            outcome, seat = self._admit(self.source[0] if self.source is not None else "")
            if outcome == WAITS:
                self.waits = True
                return FirstBytes.WAITS
            self.judged(outcome, seat)
        return FirstBytes.ENDED if self.outcome else FirstBytes.DONE

    def _ended(self) -> int:
        """Handle the peer's close: within a header it is an error, otherwise a health check."""
        self.waits = False
        within = self.header.begun and not self.header.complete
        self.outcome = WRONG if within else CHECK
        return FirstBytes.ENDED
