"""Sockets behind a load balancer: who may send a PROXY header, and reading it from the socket before TLS begins.

The kernel keeps what is not the header: bytes are looked at first, and then exactly the header is read. A connection
that closes before a byte of a client (a health check of the port) ends quietly. A connection whose header names nobody
has the balancer's own address.
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
    """The addresses whose PROXY headers are believed."""

    def __init__(self, networks: Sequence[str]) -> None:
        self._networks = [ipaddress.ip_network(network) for network in networks]

    def refusal(self, fd: int) -> str:
        """Return "" when the peer of a socket is one of them, else the name of the counter."""
        borrowed = socket.socket(fileno=fd)
        try:
            peer = borrowed.getpeername()
        except OSError:
            return CHECK  # it has closed by now, as a health check does
        finally:
            borrowed.detach()
        return "" if isinstance(peer, tuple) and self.names(peer[0]) else UNTRUSTED

    def names(self, address: str) -> bool:
        """Whether an address is one of them; IPv4 may be written as IPv6."""
        parsed = ipaddress.ip_address(address.partition("%")[0])
        if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
            parsed = parsed.ipv4_mapped
        return any(parsed in network for network in self._networks)


class ProxiedSocket(FirstBytes):
    """One connection until its header was read.

    Attributes:
        outcome: Name of the counter when the connection ended here, "" while it did not.
        seat: The client's place at the listener, once its header was read.
        waits: Its address's turn comes later: nothing is read until ``judged``.
    """

    def __init__(self, versions: str, admit: Admit | None = None) -> None:
        """versions: "v1", "v2" or "any"; admit: called once for each client, with "" if its header names no address."""
        self.header = ProxyHeader(versions)
        self.outcome = ""
        self.seat: ConnectionSlot | None = None
        self.waits = False
        self._admit = admit

    @property
    def source(self) -> tuple[str, int] | None:
        """The client that the header names."""
        return self.header.source

    @property
    def common_name(self) -> str | None:
        """The name that the header vouches for, "" for none; None: one that no client can have."""
        return self.header.common_name

    def judged(self, outcome: str, seat: ConnectionSlot | None) -> None:
        """End its wait: it has a seat, or the name of the counter that refuses it."""
        self.waits, self.outcome, self.seat = False, outcome, seat

    def read(self, fd: int) -> int:
        """Read what of the header has come."""
        if self.waits:  # nobody asked for more: the peer has hung up
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
            return self._client_came()
        try:
            count = self.header.take(waiting)
        except InvalidProxyHeader:
            self.outcome = WRONG
            return FirstBytes.ENDED
        borrowed.recv(count)
        # A header that names nobody (UNKNOWN, LOCAL) may precede a check of the port or of the service: one of the port
        # sends nothing behind it, one of the service speaks TLS or MQTT and is served [PROXY protocol, 2.2].
        return self._client_came() if self.header.complete and len(waiting) > count else FirstBytes.MORE

    def _client_came(self) -> int:
        """Judge it by the address that the header names, before its handshake."""
        if self._admit is not None:
            outcome, seat = self._admit(self.source[0] if self.source is not None else "")
            if outcome == WAITS:
                self.waits = True
                return FirstBytes.WAITS
            self.judged(outcome, seat)
        return FirstBytes.ENDED if self.outcome else FirstBytes.DONE

    def _ended(self) -> int:
        """The peer closed: before or behind a header it was a check, within one it was not."""
        self.waits = False
        within = self.header.begun and not self.header.complete
        self.outcome = WRONG if within else CHECK
        return FirstBytes.ENDED
