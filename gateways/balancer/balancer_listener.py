"""Doors of a balancer: sockets that listen while there is an edge to bring a client to, and refuse while there is none.

A client that is refused at once tries another balancer; in the backlog it would wait. Sockets of systemd (LISTEN_FDS,
LISTEN_FDNAMES) are taken instead of those of the settings, by name: their backlog outlives this process.
"""

import contextlib
import errno
import os
import socket
from collections.abc import Callable, Mapping

import trio

from conf.balance_settings import BalanceListener
from conf.errors import UserError
from gateways.balancer.server_busy import is_no_room

__all__ = ["BalancerListener", "activated_sockets"]

FIRST_DESCRIPTOR = 3  # sd_listen_fds(3)
ACCEPTS_PER_TURN = 64
NO_ROOM_S = 0.1  # without a descriptor for another connection
OF_THE_CLIENT = (  # accept(2): errors of the new connection, not of the door
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
    """Return the sockets that systemd gives this process, by name."""
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
        settings: Of its table.
        given: A socket of systemd instead of one of our own.
        count: Counts an event by name.
    Raises:
        UserError: The address cannot be used.
    """

    def __init__(self, settings: BalanceListener, given: socket.socket | None, count: Callable[[str], None]) -> None:
        self.settings = settings
        self._count = count
        self._opened = trio.Event()
        self.is_open = False
        self._socket = given or self._bound(settings.port)
        if given is None and settings.port == 0:  # a shut socket keeps a port only if it was asked for
            port = self._socket.getsockname()[1]
            self._socket.close()
            self._socket = self._bound(port)
        self._address = self._socket.getsockname()
        self._socket.setblocking(False)
        if given is not None:
            self._shut()  # until there is an edge; what waits in its backlog comes again

    @property
    def address(self) -> str:
        """Where clients connect, host:port."""
        return f"{self._address[0]}:{self._address[1]}"

    def _bound(self, port: int) -> socket.socket:
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
        """Take clients, if that is not so already.

        Raises:
            UserError: Another process took the address meanwhile.
        """
        if self.is_open:
            return
        try:
            self._socket.listen(self.settings.backlog)
        except OSError as error:
            raise UserError(f"listener {self.settings.name}: {self.address}: {error.strerror or error}") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # every new one begins with it too
        self.is_open = True
        self._opened.set()

    def shut(self) -> None:
        """Refuse clients: the address stays ours."""
        if self.is_open:
            self.is_open = False
            self._opened = trio.Event()
            self._shut()

    def _shut(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        """Let go of the address."""
        self.is_open = False
        trio.lowlevel.notify_closing(self._socket)
        self._socket.close()

    async def run(self, arrived: Callable[["BalancerListener", socket.socket, str], None]) -> None:
        """Hand every new connection on, with its client's address, until the door is closed."""
        while self._socket.fileno() >= 0:
            if not self.is_open:
                await self._opened.wait()
            try:
                await trio.lowlevel.wait_readable(self._socket)
                for _ in range(ACCEPTS_PER_TURN):
                    client, peer = self._socket.accept()
                    arrived(self, client, peer[0])
            except trio.ClosedResourceError:
                return
            except (BlockingIOError, ConnectionError, InterruptedError):
                continue
            except OSError as error:
                if is_no_room(error):
                    self._count("no_descriptors")
                    await trio.sleep(NO_ROOM_S)
                elif error.errno in OF_THE_CLIENT:
                    await trio.lowlevel.checkpoint()
                elif self.is_open and self._socket.fileno() >= 0:
                    raise
                else:
                    await trio.lowlevel.checkpoint()
