"""Hand-over of a client's connection between two processes of one host: one message with one descriptor, one answer.

The socket is of SOCK_SEQPACKET, so messages have edges, and answers of one byte come in the order of the questions.
Times are of CLOCK_BOOTTIME, which all processes of a host share. Who may have the connection when, and why no two ever
have it: docs/adr/0054-hand-over.md.
"""

import enum
from collections.abc import Callable

import msgspec

from wire.decoding import Payload, strictly
from wire.messages.ranges import Counted, ListenerName

__all__ = [
    "ANSWER_S",
    "HAND_OVER",
    "HAND_OVER_BYTES_MAX",
    "HandoffReply",
    "SocketHandoffRequest",
    "decode_hand_over",
    "encode_hand_over",
]

HAND_OVER = "@hand-over"  # among the addresses of an edge's listeners: unix:<boot id>:<path>; no listener's name
VERSION = 1
HAND_OVER_BYTES_MAX = 512
ANSWER_S = 1.0  # from the message to its answer; who asked then asks somebody else


class HandoffReply(enum.IntEnum):
    """An edge's answer, one byte."""

    TAKEN = 0
    NOT_READY = 1
    NO_LISTENER = 2
    FULL = 3
    DRAINING = 4
    UNUSABLE = 5  # the message, or what came with it


class SocketHandoffRequest(msgspec.Struct, frozen=True, tag_field="v", tag=VERSION):
    """The message beside the descriptor."""

    listener: ListenerName  # whose policy, certificate and limits the connection gets
    accepted_ms: Counted  # when the client came: its time for CONNECT runs from here
    sent_ms: Counted


_read: Callable[[Payload], SocketHandoffRequest] = strictly(
    msgspec.msgpack.Decoder(SocketHandoffRequest).decode, "hand-over"
)
_encoder = msgspec.msgpack.Encoder()


def encode_hand_over(listener: str, accepted_ms: int, sent_ms: int) -> bytes:
    """Return the message."""
    return _encoder.encode(SocketHandoffRequest(listener, accepted_ms, sent_ms))


def decode_hand_over(data: bytes) -> SocketHandoffRequest:
    """Return the message.

    Raises:
        Unreadable: It is none, too long, or one of another version.
    """
    return _read(data[: HAND_OVER_BYTES_MAX + 1])
