"""Messages between members, and their encoding: compact, bounded, strict.

Messages are msgpack arrays ``[kind, field, ...]``. A decoder accepts longer arrays (fields of a later release) and
refuses unknown kinds, missing fields and values out of bounds. A datagram holds a few messages; a full exchange over
TCP holds the state of all members. Sealing, addressing and replay protection are in ``envelope.py``. Source: SWIM
(2002) section 3.1 (ping, ping-req, ack) and 4.2 (alive, suspect, confirm); nack from Lifeguard (2018).
"""

from collections.abc import Iterator
from functools import lru_cache
from ipaddress import ip_address
from typing import Annotated, Literal

import msgspec

from membership.metadata import METADATA_BYTES_MAX, Name, NodeMetadata, metadata_bytes
from wire.decoding import decoding_fault

__all__ = [
    "DATAGRAM_BYTES_MAX",
    "INCARNATION_MAX",
    "MEMBERS_MAX",
    "NAMES",
    "U63",
    "Ack",
    "Address",
    "Alive",
    "Dead",
    "MalformedGossip",
    "MemberRecord",
    "Message",
    "Nack",
    "Ping",
    "PingReq",
    "Suspect",
    "decode_messages",
    "decode_records",
    "encode_message",
    "encode_records",
    "join_messages",
]

DATAGRAM_BYTES_MAX = 1400  # sealed, without IP and UDP headers: fits an Ethernet MTU of 1 500 minus a tunnel header
MESSAGES_MAX = 64  # per datagram; the smallest message has more than 20 bytes on average
MEMBERS_MAX = 1024  # per cluster in gossip; beyond it new members are refused and counted

Address = tuple[str, int]  # numeric host, port

U32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
INCARNATION_MAX = 2**63 - 1  # a process starts below 2**62, so that only a holder of the key can approach the maximum
U63 = Annotated[int, msgspec.Meta(ge=0, le=INCARNATION_MAX)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Host = Annotated[str, msgspec.Meta(min_length=2, max_length=45)]  # the longest numeric IPv6 form has 45


class Ping(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Direct probe. The name lets a process on a reused address ignore it."""

    sequence: U32
    target: Name


class Ack(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Answer to a ping, forwarded by a relay under the prober's sequence."""

    sequence: U32


class Nack(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A relay is reachable but got no ack from the target."""

    sequence: U32


class PingReq(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Request to a relay to probe a member."""

    sequence: U32
    target: Name


class Alive(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """A member's address, session and metadata."""

    incarnation: U63
    session: U63  # names one start of the member's process on the network: replay protection is per session
    host: Host
    port: Port
    metadata: NodeMetadata

    @property
    def name(self) -> str:
        """The member's name."""
        return self.metadata.name


class Suspect(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """An accuser missed a member's acks."""

    name: Name
    incarnation: U63
    accuser: Name


class Dead(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """A suspicion expired; if the accuser is the member itself, it left."""

    name: Name
    incarnation: U63
    accuser: Name


Message = Ping | Ack | Nack | PingReq | Alive | Suspect | Dead
NAMES: dict[type[Message], str] = {  # in counters
    Ping: "ping",
    Ack: "ack",
    Nack: "nack",
    PingReq: "pingreq",
    Alive: "alive",
    Suspect: "suspect",
    Dead: "dead",
}


class MemberRecord(msgspec.Struct, frozen=True, array_like=True):
    """One row of a full exchange."""

    state: Literal["alive", "suspect", "dead", "left"]
    alive: Alive


class MalformedGossip(ValueError):
    """The bytes came from a holder of the key and violate this protocol version."""


_encoder = msgspec.msgpack.Encoder(order="sorted")
_messages = msgspec.msgpack.Decoder(Annotated[list[Message], msgspec.Meta(max_length=MESSAGES_MAX)])
_rows = msgspec.msgpack.Decoder(Annotated[list[msgspec.Raw], msgspec.Meta(max_length=MEMBERS_MAX)])
_record = msgspec.msgpack.Decoder(MemberRecord)


def encode_message(message: Message) -> bytes:
    """Encode one message; news is encoded once and sent many times."""
    return _encoder.encode(message)


def join_messages(encoded: list[bytes]) -> bytes:
    """Join encoded messages to the body of one datagram: a msgpack array of them."""
    count = len(encoded)
    head = bytes((0x90 | count,)) if count < 16 else b"\xdc" + count.to_bytes(2, "big")
    return head + b"".join(encoded)


def decode_messages(body: bytes) -> list[Message]:
    """Decode the body of a datagram.

    Raises:
        MalformedGossip: The whole body is refused.
    """
    try:
        messages: list[Message] = _messages.decode(body)
    except Exception as error:  # RecursionError and UnicodeDecodeError among others: the bytes are the cause
        raise MalformedGossip(decoding_fault(error)) from None
    for message in messages:
        if type(message) is Alive:
            _check(message)
    return messages


def encode_records(records: list[MemberRecord]) -> Iterator[bytes]:
    """Encode the state of all members for a full exchange; yields small parts."""
    yield b"\xdc" + len(records).to_bytes(2, "big")
    for record in records:
        yield _encoder.encode(record)


def decode_records(body: bytes) -> Iterator[MemberRecord]:
    """Decode a full exchange; yields its records one by one.

    Raises:
        MalformedGossip: This record and all later ones are refused.
    """
    try:
        for row in _rows.decode(body):
            record = _record.decode(row)
            _check(record.alive)
            yield record
    except Exception as error:  # RecursionError and UnicodeDecodeError among others: the bytes are the cause
        raise MalformedGossip(decoding_fault(error)) from None


def _check(alive: Alive) -> None:
    if metadata_bytes(alive.metadata) > METADATA_BYTES_MAX:
        raise MalformedGossip(f"metadata above {METADATA_BYTES_MAX} bytes")
    if not _is_numeric(alive.host):
        raise MalformedGossip("host is not a numeric address")


@lru_cache(maxsize=2 * MEMBERS_MAX)
def _is_numeric(host: str) -> bool:
    """Return whether a host is numeric: a name would need a DNS query for each packet, in the event loop."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
