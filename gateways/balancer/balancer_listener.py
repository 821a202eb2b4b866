"""Listening sockets of a balancer: open while at least one edge is a candidate, otherwise they refuse connections.

A refused client tries another balancer at once; in the backlog it would wait. Sockets of systemd (LISTEN_FDS,
LISTEN_FDNAMES) replace those of the settings, by name: their backlog outlives this process.
"""

import contextlib
import errno
import os
import socket
from collections.abc import Callable, Mapping

import trio

from conf.balance_settings import BalanceListener
from conf.errors import UserError
from gateways.balancer.server_busy import is_resource_exhausted

__all__ = ["BalancerListener", "activated_sockets"]

FIRST_DESCRIPTOR = 3  # sd_listen_fds(3)
ACCEPTS_PER_ITERATION = 64
NO_DESCRIPTOR_S = 0.1  # pause of accept while no descriptor is free
CLIENT_ERRORS = (  # accept(2): errors of the new connection, not of the listener
    errno.ENETDOWN,
    errno.EPROTO,
    errno.ENOPROTOOPT,
    errno.EHOSTDOWN,
    errno.ENONET,
    errno.EHOSTUNREACH,
    errno.EOPNOTSUPP,
    errno.ENETUNREACH,
    errno.EPERM,
)


def activated_sockets(environment: Mapping[str, str], pid: int) -> dict[str, socket.socket]:
    """Return the sockets that systemd passed to this process, by name."""
    if environment.get("LISTEN_PID") != str(pid):
        return {}
    count, names = int(environment.get("LISTEN_FDS", "0")), environment.get("LISTEN_FDNAMES", "").split(":")
    sockets = {}
    for number in range(count):
        given = socket.socket(fileno=FIRST_DESCRIPTOR + number)
        os.set_inheritable(given.fileno(), False)
        sockets[names[number] if number < len(names) else ""] = given
    return sockets


class BalancerListener:
    """One listener.

    Args:
      settings: Settings of this listener.
      given: A socket of systemd, or None to create one.
      count: Counts an event by name.

    Raises:
      UserError: The address cannot be used.
    """

    def __init__(self, settings: BalanceListener, given: socket.socket | None, count: Callable[[str], None]) -> None:
        self.settings = settings
        self._count = count
        self._opened = trio.Event()
        self.is_open = False
        self._socket = given or self._bind(settings.port)
        if given is None and settings.port == 0:  # a shut socket keeps its port only if the port was set explicitly
            port = self._socket.getsockname()[1]
            self._socket.close()
            self._socket = self._bind(port)
        self._address = self._socket.getsockname()
        self._socket.setblocking(False)
        if given is not None:
            self._shut()  # until there is an edge; clients in its backlog reconnect

    @property
    def address(self) -> str:
        """The address to which clients connect, host:port."""
        return f"{self._address[0]}:{self._address[1]}"

    def _bind(self, port: int) -> socket.socket:
        host = self.settings.bind.strip("[]")
        bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((host, port))
        except OSError as error:
            bound.close()
            where = f"{self.settings.bind}:{port}"
            raise UserError(
                f"listener {self.settings.name}: cannot listen on {where}: {error.strerror or error}"
            ) from None
        return bound

    def open(self) -> None:
        """Accept clients; no effect if the listener is open.

        Raises:
          UserError: Another process has bound the address.
        """
        if self.is_open:
            return
        try:
            self._socket.listen(self.settings.backlog)
        except OSError as error:
            raise UserError(f"listener {self.settings.name}: {self.address}: {error.strerror or error}") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted sockets inherit it
        self.is_open = True
        self._opened.set()

    def shut(self) -> None:
        """Refuse clients but keep the address bound."""
        if self.is_open:
            self.is_open = False
            self._opened = trio.Event()
            self._shut()

    def _shut(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        """Close the socket and free the address."""
        self.is_open = False
        trio.lowlevel.notify_closing(self._socket)
        self._socket.close()

    async def run(self, arrived: Callable[["BalancerListener", socket.socket, str], None]) -> None:
        """Call ``arrived`` with each new connection and its client's address, until the listener is closed."""
        while self._socket.fileno() >= 0:
            if not self.is_open:
                await self._opened.wait()
            try:
                await trio.lowlevel.wait_readable(self._socket)
                for _ in range(ACCEPTS_PER_ITERATION):
                    client, peer = self._socket.accept()
                    arrived(self, client, peer[0])
            except trio.ClosedResourceError:
                return
            except (BlockingIOError, ConnectionError, InterruptedError):
                continue
            except OSError as error:
                if is_resource_exhausted(error):
                    self._count("no_descriptors")
                    await trio.sleep(NO_DESCRIPTOR_S)
                elif error.errno in CLIENT_ERRORS:
                    await trio.lowlevel.checkpoint()
                elif self.is_open and self._socket.fileno() >= 0:
                    raise
                else:
                    await trio.lowlevel.checkpoint()
