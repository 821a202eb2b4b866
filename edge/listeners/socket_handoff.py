"""Connections that a balancer of this host hands over: one message and one descriptor are judged, and answered.

The edge reads a connection only after it said *taken* in time: what it says too late is void, and the descriptor is
closed, because the balancer may have given the connection to another edge meanwhile. Pure but for what it asks of the
descriptor itself; the socket is in ``edge/listeners/handoff_socket.py``. Source: docs/adr/0054-hand-over.md.
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

ANSWERED_S = ANSWER_S / 2  # an older offer is refused: the answer has to be back in time
CREDENTIALS = struct.Struct("3i")  # pid, uid, gid of SO_PEERCRED


class Offer(NamedTuple):
    """One message as ``recvmsg`` brings it."""

    data: bytes
    descriptors: Sequence[int]
    flags: int


class SocketHandoff:
    """Judge of what balancers offer.

    Args:
        state: Returns TAKEN when the listener of that name would take one more client now, or why not.
        take: Takes a connection (listener, descriptor, seconds since the client came) as if the listener had accepted
            it, or closes it.
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
        """Answer one offer, and take or close each of its descriptors.

        Args:
            now: Boot time at which it was read.
            offer: The message.
            answer: Sends the answer; False if that was not possible.
            clock: Boot time, read again after the answer.
        """
        descriptors = list(offer.descriptors)
        try:
            message, verdict = self._judge(now, offer)
            self._count(f"handed_over_{verdict.name.lower()}")
            if not answer(verdict) or verdict is not HandoffReply.TAKEN or message is None:
                return
            if clock() - message.sent_ms / 1000 >= ANSWER_S:  # stopped between two lines: nobody waits for it any more
                self._count("handed_over_late")
                return
            self._take(message.listener, descriptors.pop(), now - message.accepted_ms / 1000)
        finally:
            for fd in descriptors:
                os.close(fd)

    def _judge(self, now: float, offer: Offer) -> tuple[SocketHandoffRequest | None, HandoffReply]:
        if len(offer.data) > HAND_OVER_BYTES_MAX or offer.flags & socket.MSG_TRUNC:
            return None, HandoffReply.UNUSABLE
        if not offer.descriptors and offer.flags & socket.MSG_CTRUNC:
            return None, HandoffReply.FULL  # this process has no room for another descriptor
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
    """Whether a descriptor is a TCP socket with somebody at the other end; it does not block from here on."""
    if not stat.S_ISSOCK(os.fstat(fd).st_mode):
        return False
    borrowed = socket.socket(fileno=fd)
    try:
        if borrowed.family not in (socket.AF_INET, socket.AF_INET6) or borrowed.proto != socket.IPPROTO_TCP:
            return False
        borrowed.getpeername()
        borrowed.setblocking(False)
        borrowed.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError:  # a listening one, or one that has ended
        return False
    finally:
        borrowed.detach()
    return True


def is_allowed(balancer: socket.socket) -> bool:
    """Whether the process at the other end is of this user, or of root."""
    raw = balancer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return CREDENTIALS.unpack(raw)[1] in (0, os.geteuid())
