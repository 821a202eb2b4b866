"""Connections that a balancer of this host hands over: checks one message with its descriptor, and replies.

The edge reads a connection only after it replied *taken* in time. After a late reply it closes the descriptor, because
the balancer may have given the connection to another edge meanwhile. Pure except for queries of the descriptor; the
socket is in ``edge/listeners/handoff_socket.py``. Source: docs/adr/0054-hand-over.md.
"""

import os
import socket
import stat
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from wire.decoding import Unreadable
from wire.messages.socket_handoff import (
    ANSWER_S,
    HAND_OVER_BYTES_MAX,
    HandoffReply,
    SocketHandoffRequest,
    decode_hand_over,
)

__all__ = ["ANSWERED_S", "Offer", "SocketHandoff", "is_allowed"]

ANSWERED_S = ANSWER_S / 2  # an older offer is refused: the reply must arrive in time
CREDENTIALS = struct.Struct("3i")  # pid, uid, gid of SO_PEERCRED


class Offer(NamedTuple):
    """One message of ``recvmsg``."""

    data: bytes
    descriptors: Sequence[int]
    flags: int


class SocketHandoff:
    """Checks and accepts the offers of balancers.

    Args:
        state: Returns TAKEN if the listener of that name accepts one more client, or the reason for a refusal.
        take: Handles a connection (listener, descriptor, seconds since its accept) as if the listener had accepted it,
            or closes it.
        count: Counts an event by name.
    """

    def __init__(
        self,
        state: Callable[[str], HandoffReply],
        take: Callable[[str, int, float], None],
        count: Callable[[str], None],
    ) -> None:
        self._state = state
        self._take = take
        self._count = count

    def offered(
        self, now: float, offer: Offer, answer: Callable[[HandoffReply], bool], clock: Callable[[], float]
    ) -> None:
        """Reply to one offer, and take or close each of its descriptors.

        Args:
            now: Boot time at which it was read.
            offer: The message.
            answer: Sends the reply; False if that failed.
            clock: Boot time, read again after the reply.
        """
        descriptors = list(offer.descriptors)
        try:
            message, verdict = self._check(now, offer)
            self._count(f"handed_over_{verdict.name.lower()}")
            if not answer(verdict) or verdict is not HandoffReply.TAKEN or message is None:
                return
            if clock() - message.sent_ms / 1000 >= ANSWER_S:  # suspended too long: the balancer gave up
                self._count("handed_over_late")
                return
            self._take(message.listener, descriptors.pop(), now - message.accepted_ms / 1000)
        finally:
            for fd in descriptors:
                os.close(fd)

    def _check(self, now: float, offer: Offer) -> tuple[SocketHandoffRequest | None, HandoffReply]:
        if len(offer.data) > HAND_OVER_BYTES_MAX or offer.flags & socket.MSG_TRUNC:
            return None, HandoffReply.UNUSABLE
        if not offer.descriptors and offer.flags & socket.MSG_CTRUNC:
            return None, HandoffReply.FULL  # this process has no free descriptor
        try:
            message = decode_hand_over(offer.data)
        except Unreadable:
            return None, HandoffReply.UNUSABLE
        if len(offer.descriptors) != 1 or offer.flags & socket.MSG_CTRUNC or not _is_client(offer.descriptors[0]):
            return None, HandoffReply.UNUSABLE
        accepted, sent = message.accepted_ms / 1000, message.sent_ms / 1000
        if not accepted <= sent <= now < sent + ANSWERED_S:
            return None, HandoffReply.NOT_READY
        return message, self._state(message.listener)


def _is_client(fd: int) -> bool:
    """Return whether a descriptor is a connected TCP socket, and make it non-blocking."""
    if not stat.S_ISSOCK(os.fstat(fd).st_mode):
        return False
    borrowed = socket.socket(fileno=fd)
    try:
        if borrowed.family not in (socket.AF_INET, socket.AF_INET6) or borrowed.proto != socket.IPPROTO_TCP:
            return False
        borrowed.getpeername()
        borrowed.setblocking(False)
        borrowed.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError:  # a listening socket, or a closed one
        return False
    finally:
        borrowed.detach()
    return True


def is_allowed(balancer: socket.socket) -> bool:
    """Return whether the process of the peer runs as this user or root."""
    raw = balancer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return CREDENTIALS.unpack(raw)[1] in (0, os.geteuid())
