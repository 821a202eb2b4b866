"""Listening sockets of clients: bound when the edge starts, open when it can serve.

Until then the system refuses clients, which may try another edge; in the backlog of a node that is not ready they would
wait. Errors that an operator can fix are one line. ``edge/loop/sockets.py`` accepts.
"""

import contextlib
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

from conf.addresses import host_of
from conf.errors import UserError
from conf.limit_names import LIMIT_NAMES
from conf.served_hosts import ServedHosts
from conf.settings import ListenerSettings
from edge.listeners.admission_control import AdmissionControl
from edge.listeners.listener_admission import listener_filter, proxy_admission
from edge.listeners.page_origins import PageOrigins
from edge.loop.options import StreamFilter
from edge.node.limits import ListenerPolicy
from wire.links.tls import certificate_hosts, client_listener_context

__all__ = [
    "EdgeListener",
    "address_of",
    "bind_socket",
    "certified_hosts",
    "has_received",
    "is_gone",
    "listener_context",
    "local_address",
    "peer_name",
    "peer_of",
    "policy_of",
    "start_listening",
]


TCP_INFO_BYTES = 136
BYTES_RECEIVED = slice(128, 136)  # tcpi_bytes_received of struct tcp_info, Linux 4.1


class EdgeListener:
    """One listener: its socket, policy, certificate and admission control.

    Args:
        settings: Of its table.
        gateways: Authority of the nodes, if certificates of gateways are accepted besides those of ``client_ca``.
    """

    def __init__(self, settings: ListenerSettings, gateways: Path | None = None) -> None:
        self.settings = settings
        self.policy = policy_of(settings)  # a reload of limits replaces it
        self.context = listener_context(settings, gateways)  # a reload replaces it, for the next handshakes
        self.admission = AdmissionControl(settings, self.policy.unmetered)
        self.hosts = ServedHosts([settings.bind, host_of(settings.advertise)])
        self.hosts.set_certified(certified_hosts(settings))
        pages = PageOrigins(settings.origins, "https" if settings.tls else "http", self.hosts)
        self._filter = listener_filter(
            settings.protocol, settings.path, pages, joined=settings.packets_per_frame == "many"
        )
        self.proxy_admission = proxy_admission(settings.proxy_protocol, settings.proxy_trusted)
        what = f"listener {settings.name}"
        self.socket = bind_socket(settings.bind, settings.port, what)
        if settings.port == 0:  # a shut socket keeps its port only if it was bound explicitly
            with self.socket as chosen:  # open until then, or another process could take the port
                self.socket = bind_socket(settings.bind, int(chosen.getsockname()[1]), what)

    def filter(self, packet_bytes_max: int, fd: int) -> StreamFilter | None:
        """Return the stream filter of a connection, None for plain MQTT."""
        return self._filter(packet_bytes_max, local_address(fd) if self.settings.protocol == "ws" else "")

    def open(self) -> None:
        """Accept connections; until then the system refuses clients, which then try another edge.

        Raises:
            UserError: Another process took the address meanwhile.
        """
        start_listening(self.socket, self.settings.backlog, f"listener {self.settings.name}")

    def shut(self, accept: Callable[["EdgeListener", int, str], None]) -> None:
        """Refuse connections and keep the address; ``accept`` gets those already in the kernel's backlog."""
        with contextlib.suppress(OSError):
            for _ in range(self.settings.backlog):
                taken, address = self.socket.accept()  # until the backlog is empty: it does not block
                taken.setblocking(False)
                accept(self, taken.detach(), str(address[0]))
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RD)


def policy_of(settings: ListenerSettings) -> ListenerPolicy:
    """Return the permissions and limits of a listener's clients."""
    return ListenerPolicy(
        settings.name,
        settings.allow_anonymous,
        settings.protocol,
        **{name: getattr(settings, name) for name in LIMIT_NAMES},
        tell_refusals=settings.tell_refusals,
        proxy_identity=settings.proxy_identity,
        unmetered=_unmetered(settings),
    )


def listener_context(settings: ListenerSettings, gateways: Path | None = None) -> ssl.SSLContext | None:
    """Return the context of a listener's handshakes, None without TLS.

    Raises:
        UserError: A file is unusable.
    """
    if not settings.tls:
        return None
    assert settings.certificate is not None and settings.key is not None
    context = client_listener_context(
        settings.certificate, settings.key, settings.client_ca, settings.require_client_certificate, gateways
    )
    context.num_tickets = settings.tls_session_tickets
    return context


def certified_hosts(settings: ListenerSettings) -> frozenset[str]:
    """Return the host names in the certificate of a WebSocket listener; empty for other listeners.

    Raises:
        UserError: The file is unusable.
    """
    if settings.protocol != "ws" or settings.certificate is None or not settings.tls:
        return frozenset()
    return certificate_hosts(settings.certificate)


def bind_socket(bind: str, port: int, what: str) -> socket.socket:
    """Bind a socket, without listening yet.

    Raises:
        UserError: The address cannot be used.
    """
    address = bind.strip("[]")
    bound = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((address, port))
    except OSError as error:
        bound.close()
        raise UserError(f"{what}: cannot listen on {bind}:{port}: {error.strerror or error}") from None
    return bound


def start_listening(bound: socket.socket, backlog: int, what: str) -> None:
    """Accept connections.

    Raises:
        UserError: Another process took the address meanwhile.
    """
    try:
        bound.listen(backlog)
    except OSError as error:
        raise UserError(f"{what}: cannot listen on {address_of(bound)}: {error.strerror or error}") from None


def address_of(bound: socket.socket) -> str:
    """Return "host:port"."""
    host_name, port = bound.getsockname()[:2]
    return f"{host_name}:{port}"


def _unmetered(settings: ListenerSettings) -> tuple[str, ...]:
    """Return the networks of the listener's own proxies: each of their addresses serves many clients.

    Empty if no PROXY header is expected: an address alone does not make a proxy.
    """
    return settings.proxy_trusted if settings.proxy_protocol != "none" else ()


def has_received(fd: int) -> bool:
    """Return whether a TCP connection has received a byte, read or unread; True if the kernel cannot report it."""
    try:
        borrowed = socket.SocketType(socket.AF_INET6, socket.SOCK_STREAM, 0, fd)
        try:
            told = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
        finally:
            borrowed.detach()
    except (OSError, ValueError):
        return True
    return len(told) < TCP_INFO_BYTES or any(told[BYTES_RECEIVED])


def is_gone(fd: int) -> bool:
    """Return whether the peer closed a connection and its data is read."""
    borrowed = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK, 0, fd)
    try:
        return not borrowed.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except (BlockingIOError, InterruptedError):
        return False
    except OSError:
        return True
    finally:
        borrowed.detach()


def peer_of(fd: int) -> str:
    """Return the peer's address of a socket; "" for a closed one."""
    return _peer(fd)[0]


def peer_name(fd: int) -> str:
    """Return the peer's address and port of a socket; "" for a closed one, or one without."""
    host, port = _peer(fd)
    return (f"[{host}]:{port}" if ":" in host else f"{host}:{port}") if host else ""


def local_address(fd: int) -> str:
    """Return the local address of a connection; "" for a closed one."""
    return _name_of(fd, socket.SocketType.getsockname)[0]


def _peer(fd: int) -> tuple[str, int]:
    return _name_of(fd, socket.SocketType.getpeername)


def _name_of(fd: int, ask: Callable[[socket.SocketType], object]) -> tuple[str, int]:
    # Of the family with the longest addresses, and without the query of the descriptor by ``socket.socket``: the
    # address contains its family. Some 1.3 us; a copy of the descriptor takes 12.
    try:
        borrowed = socket.SocketType(socket.AF_INET6, socket.SOCK_STREAM, 0, fd)
        try:
            name = ask(borrowed)
        finally:
            borrowed.detach()
    except (OSError, ValueError):
        return "", 0
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else ("", 0)
