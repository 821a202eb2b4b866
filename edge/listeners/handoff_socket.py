"""The socket for connections of balancers on this host: ``hand-over.sock`` in the edge's data folder.

Only this user and root may connect. Each wake-up reads all pending messages, so a connect storm costs few wake-ups.
Decisions: ``edge/listeners/socket_handoff.py``.
"""

import socket
import struct
from collections.abc import Callable
from pathlib import Path

import trio

from conf.errors import UserError
from edge.listeners.socket_handoff import Offer, SocketHandoff, is_allowed
from wire.clock import boot_time
from wire.messages.socket_handoff import HAND_OVER, HAND_OVER_BYTES_MAX, HandoffReply
from wire.unix_name import unix_name

__all__ = ["HandoffSocket"]

NAME = "hand-over.sock"
ADDRESS_CHARACTERS_MAX = 255  # of the map: ``wire/messages/ranges.py``
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # the same in all processes of this kernel
BALANCERS_MAX = 16  # at once
OFFERS_PER_WAKEUP = 64
RETRY_S = 0.1
DESCRIPTOR_BYTES = struct.calcsize("i")
DESCRIPTORS_MAX = 4  # received in one message: one is correct, the others are closed


class HandoffSocket:
    """The socket of one edge.

    Args:
        folder: The edge's data folder.
        desk: Checks offers.
        count: Counts an event by name.
        after: Called after each batch of offers.
    """

    def __init__(
        self, folder: Path, desk: SocketHandoff, count: Callable[[str], None], after: Callable[[], None]
    ) -> None:
        self._path = folder.absolute() / NAME
        self._desk = desk
        self._count = count
        self._after = after
        self._balancers = 0

    @property
    def addresses(self) -> dict[str, str]:
        """The address for balancers of this host, for the map; empty if the path is too long for it."""
        address = f"unix:{BOOT_ID.read_text().strip()}:{self._path}"
        return {HAND_OVER: address} if len(address) <= ADDRESS_CHARACTERS_MAX else {}

    async def run(self) -> None:
        """Accept balancers until cancelled.

        Raises:
            UserError: The socket cannot be made.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as listening:
            try:
                self._path.unlink(missing_ok=True)
                with unix_name(self._path) as path:
                    listening.bind(path)
                self._path.chmod(0o600)  # before it listens
                listening.listen(BALANCERS_MAX)
            except OSError as error:
                raise UserError(f"cannot listen on {self._path}: {error.strerror or error}") from None
            try:
                async with trio.open_nursery() as nursery:
                    while True:
                        await trio.lowlevel.wait_readable(listening)
                        try:
                            balancer, _ = listening.accept()
                        except OSError:  # the balancer left, or no descriptor is free: it stays in the backlog
                            await trio.sleep(RETRY_S)
                        else:
                            nursery.start_soon(self._serve, balancer)
            finally:
                self._path.unlink(missing_ok=True)

    async def _serve(self, balancer: socket.socket) -> None:
        """Answer one balancer until it disconnects."""
        with balancer:
            if self._balancers >= BALANCERS_MAX or not is_allowed(balancer):
                self._count("balancers_refused")
                return
            balancer.setblocking(False)
            self._balancers += 1
            try:
                while await self._answer_pending(balancer):
                    self._after()
            except OSError:
                self._count("balancers_failed")
            finally:
                self._balancers -= 1

    async def _answer_pending(self, balancer: socket.socket) -> bool:
        """Answer all pending offers; False at the end."""

        def answer(verdict: HandoffReply) -> bool:
            try:
                return balancer.send(bytes((verdict,))) == 1
            except OSError:
                return False

        await trio.lowlevel.wait_readable(balancer)
        for _ in range(OFFERS_PER_WAKEUP):
            try:
                offer = _receive(balancer)
            except BlockingIOError:
                return True
            if not offer.data and not offer.descriptors:
                return False
            self._desk.offered(boot_time(), offer, answer, boot_time)
        return True


def _receive(balancer: socket.socket) -> Offer:
    """Read one message with its descriptors, with close-on-exec set (``socket.recv_fds`` omits it)."""
    size = socket.CMSG_LEN(DESCRIPTORS_MAX * DESCRIPTOR_BYTES)
    data, ancillary, flags, _ = balancer.recvmsg(HAND_OVER_BYTES_MAX + 1, size, socket.MSG_CMSG_CLOEXEC)
    descriptors: list[int] = []
    for level, kind, raw in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            count = len(raw) // DESCRIPTOR_BYTES
            descriptors += struct.unpack_from(f"{count}i", raw)
    return Offer(data, descriptors, flags)
