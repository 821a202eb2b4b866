"""The balancer's end of a hand-over: pipelined offers to one edge of this host, answered in order.

An offer without an answer within ANSWER_S is void, and so are the offers behind it: the connection is closed.
The edge then cannot send a later answer, so it drops the offered clients. Rules: docs/adr/0054-hand-over.md.
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

from gateways.balancer.server_busy import is_resource_exhausted
from wire.clock import boot_time
from wire.messages.socket_handoff import ANSWER_S, HandoffReply, encode_hand_over
from wire.unix_name import unix_name

__all__ = ["EdgeSocket", "is_reachable"]

ANSWERS_PER_ITERATION = 256
AnswerCallback: TypeAlias = Callable[[HandoffReply | None], None]  # None: no answer in time, or the edge closed


class EdgeSocket:
    """Hand-overs to one edge; connects with the first offer.

    Args:
      path: Path of its socket.
      start: Starts a task that lives as long as the connection.
    """

    def __init__(self, path: str, start: Callable[..., None]) -> None:
        self._path = path
        self._start = start
        self._connection: socket.socket | None = None
        self._offers: deque[tuple[float, AnswerCallback]] = deque()  # (deadline, callback) in the order of sending
        self._wait_scope = trio.CancelScope()

    def offer(self, client: socket.socket, listener: str, accepted: float, callback: AnswerCallback) -> bool:
        """Offer a client; False if the edge cannot be reached, then ``callback`` is not called.

        Raises:
          OSError: This process lacks resources for the connection (``is_resource_exhausted``).
        """
        now = boot_time()
        try:
            connection = self._connect()
            message = encode_hand_over(listener, int(accepted * 1000), int(now * 1000))
            socket.send_fds(connection, [message], [client.fileno()], socket.MSG_DONTWAIT)
        except ConnectionError:  # the edge closed
            self.close()
            return False
        except OSError as error:
            if is_resource_exhausted(error):
                raise
            return False  # its buffer is full; it may still accept earlier offers
        if not self._offers:
            self._wait_scope.deadline = trio.current_time() + ANSWER_S
        self._offers.append((now + ANSWER_S, callback))
        return True

    @property
    def is_idle(self) -> bool:
        """Whether no answer is pending."""
        return not self._offers

    def _connect(self) -> socket.socket:
        if self._connection is None:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
            try:
                with unix_name(Path(self._path)) as name:
                    connection.connect(name)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
            self._start(self._receive_answers, connection)
        return self._connection

    async def _receive_answers(self, connection: socket.socket) -> None:
        """Pass each answer to its callback, until the edge closes or an answer is late."""
        while connection is self._connection:
            self._wait_scope = trio.CancelScope()
            if self._offers:
                self._wait_scope.deadline = trio.current_time() + max(0.0, self._offers[0][0] - boot_time())
            with self._wait_scope, contextlib.suppress(trio.ClosedResourceError):
                await trio.lowlevel.wait_readable(connection)
            is_open = self._read(connection)
            if connection is not self._connection:
                return
            if not is_open or (self._offers and boot_time() >= self._offers[0][0]):
                self.close()

    def _read(self, connection: socket.socket) -> bool:
        for _ in range(ANSWERS_PER_ITERATION):
            try:
                answer = connection.recv(2)
                verdict = HandoffReply(answer[0])
            except BlockingIOError:
                return True
            except (OSError, IndexError, ValueError):
                return False
            if not self._offers:
                return False  # an answer without an offer
            _, callback = self._offers.popleft()
            callback(verdict)
            if connection is not self._connection:
                return False
        return True

    def close(self) -> None:
        """Close the connection; callbacks without an answer get None."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        offers, self._offers = self._offers, deque()
        answers = _read_last_answers(connection)
        trio.lowlevel.notify_closing(connection)
        connection.close()
        for (_, callback), answer in zip_longest(offers, answers[: len(offers)]):
            callback(answer)


def _read_last_answers(connection: socket.socket) -> list[HandoffReply]:
    """Return the received answers and refuse later ones: a client that this edge accepted must not get another edge."""
    answers: list[HandoffReply] = []
    with contextlib.suppress(OSError, IndexError, ValueError):  # end of stream, or an invalid answer
        connection.shutdown(socket.SHUT_RD)
        while True:
            answers.append(HandoffReply(connection.recv(2)[0]))
    return answers


def is_reachable(path: str) -> bool:
    """Whether the edge's socket exists and this user may connect to it."""
    return os.access(path, os.R_OK | os.W_OK)
