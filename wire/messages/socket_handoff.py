"""Hand-off of a client's connection between two processes of one host: a message with a descriptor, and a reply.

The socket is a SOCK_SEQPACKET one, which keeps message boundaries; replies of one byte come in the order of requests.
Times are of CLOCK_BOOTTIME, which all processes of a host share. Ownership of the connection and the proof of its
exclusivity: docs/adr/0054-hand-over.md.
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

HAND_OVER = "@hand-over"  # among the addresses of an edge's listeners: unix:<boot id>:<path>; no listener name
VERSION = 1
HAND_OVER_BYTES_MAX = 512
ANSWER_S = 1.0  # from the request to its reply; then the sender tries another edge


class HandoffReply(enum.IntEnum):
    """An edge's reply, one byte."""

    TAKEN = 0
    NOT_READY = 1
    NO_LISTENER = 2
    FULL = 3
    DRAINING = 4
    UNUSABLE = 5  # invalid message or descriptor


class SocketHandoffRequest(msgspec.Struct, frozen=True, tag_field="v", tag=VERSION):
    """The message sent with the descriptor."""

    listener: ListenerName  # with the policy, certificate and limits for the connection
    accepted_ms: Counted  # time of accept: the CONNECT timeout starts here
    sent_ms: Counted


_read: Callable[[Payload], SocketHandoffRequest] = strictly(
    msgspec.msgpack.Decoder(SocketHandoffRequest).decode, "hand-over"
)
_encoder = msgspec.msgpack.Encoder()


def encode_hand_over(listener: str, accepted_ms: int, sent_ms: int) -> bytes:
    """Return the encoded message."""
    return _encoder.encode(SocketHandoffRequest(listener, accepted_ms, sent_ms))


def decode_hand_over(data: bytes) -> SocketHandoffRequest:
    """Return the decoded message.

    Raises:
        Unreadable: It is malformed, too long, or of another version.
    """
    return _read(data[: HAND_OVER_BYTES_MAX + 1])
