"""The frames of a TCP exchange: the order of proofs, and the contents.

Four sealed frames, each after a 4-byte length::

    asker  -> helper   hello     purpose (full exchange, or keys) and the asker's challenge
    helper -> asker    answer    the helper's challenge, and for a full exchange the state of every member
    asker  -> helper   request   the asker's state, or a key request
    helper -> asker    result    empty, or the key response

Both challenges are part of the associated data of all later frames, so a recording cannot be replayed: the sender of a
replayed hello cannot read the answer, and no state changes. The asker processes the helper's state before it sends its
own: a restarted process first learns of its former incarnation and can exceed it.

Pure functions on bytes; sockets are in ``gossip.py``.
"""

from typing import Annotated, Literal

import msgspec

from membership.envelope import Envelope
from membership.packets import MEMBERS_MAX, U63

__all__ = [
    "CHALLENGE_BYTES",
    "FRAME_BYTES_MAX",
    "HELLO_BYTES_MAX",
    "LENGTH_BYTES",
    "BadExchange",
    "ExchangeHello",
    "ExchangeSeal",
    "open_hello",
    "seal_hello",
]

LENGTH_BYTES = 4
CHALLENGE_BYTES = 16
HELLO_BYTES_MAX = 256  # maximum read from an unproven peer
FRAME_BYTES_MAX = MEMBERS_MAX * 1024  # a record has at most some 700 bytes

Purpose = Literal["members", "keys"]
Stage = Literal["answer", "request", "result"]


class BadExchange(Exception):
    """The peer's bytes were refused; the envelope counts the reason, or this text has it."""


class ExchangeHello(msgspec.Struct, frozen=True, array_like=True):
    """The asker's purpose and its challenge."""

    purpose: Purpose
    challenge: Annotated[bytes, msgspec.Meta(max_length=CHALLENGE_BYTES)]
    session: U63


_encoder = msgspec.msgpack.Encoder()
_hello = msgspec.msgpack.Decoder(ExchangeHello)


def seal_hello(envelope: Envelope, hello: ExchangeHello) -> bytes:
    """Seal the first frame."""
    return envelope.seal(_encoder.encode(hello), b"hello")


def open_hello(envelope: Envelope, frame: bytes) -> ExchangeHello:
    """Open the first frame.

    Raises:
        BadExchange: It is malformed or not authentic.
    """
    content = envelope.open(frame, b"hello")
    if content is None:
        raise BadExchange("hello")
    try:
        hello = _hello.decode(content)
    except Exception:  # RecursionError and UnicodeDecodeError among others: the bytes are the cause
        raise BadExchange("hello") from None
    if len(hello.challenge) != CHALLENGE_BYTES:
        raise BadExchange("hello")
    return hello


class ExchangeSeal:
    """Seals and opens the later frames of one exchange."""

    def __init__(self, envelope: Envelope, purpose: Purpose, asker_challenge: bytes) -> None:
        self._envelope = envelope
        self._context = purpose.encode() + b"\0" + asker_challenge

    def seal_answer(self, helper_challenge: bytes, content: bytes) -> bytes:
        """Seal the helper's answer; its challenge binds all later frames."""
        frame = self._envelope.seal(helper_challenge + content, b"answer\0" + self._context)
        self._context += helper_challenge
        return frame

    def open_answer(self, frame: bytes) -> bytes:
        """Open the helper's answer; its challenge binds all later frames.

        Raises:
            BadExchange: Not an answer to this hello.
        """
        content = self._open(frame, "answer")
        if len(content) < CHALLENGE_BYTES:
            raise BadExchange("answer")
        self._context += content[:CHALLENGE_BYTES]
        return content[CHALLENGE_BYTES:]

    def seal(self, stage: Literal["request", "result"], content: bytes) -> bytes:
        """Seal a later frame."""
        return self._envelope.seal(content, stage.encode() + b"\0" + self._context)

    def open(self, stage: Literal["request", "result"], frame: bytes) -> bytes:
        """Open a later frame.

        Raises:
            BadExchange: Not of this exchange, or not this stage of it.
        """
        return self._open(frame, stage)

    def _open(self, frame: bytes, stage: Stage) -> bytes:
        content = self._envelope.open(frame, stage.encode() + b"\0" + self._context)
        if content is None:
            raise BadExchange(stage)
        return content
