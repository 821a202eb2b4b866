"""Control messages about wills: the will itself, and its fan-out by an edge for a partition."""

from typing import Annotated

import msgspec
from msgspec import Meta

from wire.messages.message import ControlMessage
from wire.messages.ranges import (
    U32,
    U64,
    ClientId,
    Counted,
    Epoch,
    PartitionNumber,
    Qos,
    ShareBytes,
    TopicName,
    UserText,
)

__all__ = ["ADDRESS_CHARS_MAX", "WILL_SHARES_MAX", "WILL_WINDOW", "FireWill", "SessionWill", "WillFired"]

WILL_WINDOW = 1_024  # window of one partition's will numbers at each receiver; those in flight span less
WILL_SHARES_MAX = 1_024  # shared groups of one will; further ones are served like messages of the edge

ADDRESS_CHARS_MAX = 128  # of an IP address, its zone included; longer ones are cut
FINGERPRINT_CHARS = 64


class SessionWill(msgspec.Struct, array_like=True):
    """A will message of a client; properties without length, Will Delay Interval removed."""

    topic: TopicName
    payload: bytes
    qos: Qos = 0
    retain: bool = False
    properties: bytes = b""
    delay_s: U32 = 0
    expiry_s: U32 = 0xFFFFFFFF
    retained_max: Counted = 0  # retained topics allowed for its user in all partitions; 0: the partition's own bound
    retained_bytes_max: Counted = 0  # of their payloads, likewise; 0: none
    # Checked against bans when the will fires; "" if unknown, as in a row of an older version.
    address: Annotated[str, Meta(max_length=ADDRESS_CHARS_MAX)] = ""  # of its client
    fingerprint: Annotated[str, Meta(max_length=FINGERPRINT_CHARS)] = ""  # SHA-256 of its certificate, in hexadecimal


class FireWill(ControlMessage, tag="FireWill"):
    """Primary to one live edge: publish this will.

    Repeated, with the same origin, to another edge after a death, after lost frames, by a new primary, or when the edge
    answers ``again``.
    """

    request: U64
    partition: PartitionNumber
    partition_epoch: Epoch
    number: U64  # of the partition's wills, ascending across all its primaries; part of the origin
    will: SessionWill
    client_id: ClientId = ""
    owner: UserText = ""  # user of the will's connection; the publishing edge authorizes it
    owner_made: Counted = 0  # policy_epoch at which that user was created


class WillFired(ControlMessage, tag="WillFired"):
    """The fan-out is complete; with ``again`` it could not be completed now, and the primary repeats the order later.

    The partition sends the copies of shared subscriptions, because it must record each pick before.
    """

    request: U64
    partition: PartitionNumber
    number: U64
    again: bool = False
    shares: Annotated[list[ShareBytes], Meta(max_length=WILL_SHARES_MAX)] = []
    properties: bytes = b""  # of those copies: with the names that the edge gave them
