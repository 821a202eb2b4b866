"""The balancer's end of a hand-over: offers to one edge of this host, many at once, and their answers in order.

An offer without an answer within the second is void, and so are those behind it: the connection to the edge is closed,
and what the edge says later it cannot send, so that it takes nobody. Rules: docs/adr/0054-hand-over.md.
"""

import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import TypeAlias

import trio

from gateways.balancer.server_busy import is_no_room
from wire.clock import boot_time
from wire.messages.socket_handoff import ANSWER_S, HandoffReply, encode_hand_over
from wire.unix_name import unix_name

__all__ = ["EdgeSocket", "is_reachable"]

ANSWERS_PER_TURN = 256
Told: TypeAlias = Callable[[HandoffReply | None], None]  # None: the edge said nothing in time, or is gone


class EdgeSocket:
    """Hand-overs to one edge; connected when there is the first one.

    Args:
        path: Of its socket.
        start: Starts a task that lives as long as the connection.
    """

    def __init__(self, path: str, start: Callable[..., None]) -> None:
        self._path = path
        self._start = start
        self._connection: socket.socket | None = None
        self._offers: deque[tuple[float, Told]] = deque()  # (until, told) in the order in which they were sent
        self._waiting = trio.CancelScope()

    def offer(self, client: socket.socket, listener: str, accepted: float, told: Told) -> bool:
        """Offer a client; False if the edge cannot be asked, then ``told`` is not called.

        Raises:
            OSError: This process has no room for the connection to the edge (``is_no_room``).
        """
        now = boot_time()
        try:
            connection = self._connected()
            message = encode_hand_over(listener, int(accepted * 1000), int(now * 1000))
            socket.send_fds(connection, [message], [client.fileno()], socket.MSG_DONTWAIT)
        except ConnectionError:  # it is gone
            self.close()
            return False
        except OSError as error:
            if is_no_room(error):
                raise
            return False  # it does not read just now, and may have taken what was offered before
        if not self._offers:
            self._waiting.deadline = trio.current_time() + ANSWER_S
        self._offers.append((now + ANSWER_S, told))
        return True

    @property
    def is_idle(self) -> bool:
        """Whether no answer is awaited."""
        return not self._offers

    def _connected(self) -> socket.socket:
        if self._connection is None:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
            try:
                with unix_name(Path(self._path)) as name:
                    connection.connect(name)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
            self._start(self._listen, connection)
        return self._connection

    async def _listen(self, connection: socket.socket) -> None:
        """Tell each answer to whoever asked, until the edge is gone or does not answer."""
        while connection is self._connection:
            self._waiting = trio.CancelScope()
            if self._offers:
                self._waiting.deadline = trio.current_time() + max(0.0, self._offers[0][0] - boot_time())
            with self._waiting, contextlib.suppress(trio.ClosedResourceError):
                await trio.lowlevel.wait_readable(connection)
            goes_on = self._read(connection)
            if connection is not self._connection:
                return
            if not goes_on or (self._offers and boot_time() >= self._offers[0][0]):
                self.close()

    def _read(self, connection: socket.socket) -> bool:
        for _ in range(ANSWERS_PER_TURN):
            try:
                answer = connection.recv(2)
                verdict = HandoffReply(answer[0])
            except BlockingIOError:
                return True
            except (OSError, IndexError, ValueError):
                return False
            if not self._offers:
                return False  # it answers what nobody asked
            _, told = self._offers.popleft()
            told(verdict)
            if connection is not self._connection:
                return False
        return True

    def close(self) -> None:
        """End the connection: whoever has no answer asks another edge."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        offers, self._offers = self._offers, deque()
        answers = _last_answers(connection)
        trio.lowlevel.notify_closing(connection)
        connection.close()
        for (_, told), answer in zip_longest(offers, answers[: len(offers)]):
            told(answer)


def _last_answers(connection: socket.socket) -> list[HandoffReply]:
    """Return the answers that have come, and let none come any more: a client that an edge took is no other one's."""
    answers: list[HandoffReply] = []
    with contextlib.suppress(OSError, IndexError, ValueError):  # the end, or no answer
        connection.shutdown(socket.SHUT_RD)
        while True:
            answers.append(HandoffReply(connection.recv(2)[0]))
    return answers


def is_reachable(path: str) -> bool:
    """Whether the socket of an edge is there, and may be connected to by this user."""
    return os.access(path, os.R_OK | os.W_OK)
