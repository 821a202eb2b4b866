"""Control messages between edges and partitions about sessions: opening, subscriptions, QoS 2 records, claims."""

from typing import Annotated

import msgspec
from msgspec import Meta

from wire.messages.message import ControlMessage
from wire.messages.ranges import (
    MEMBERS_MAX,
    ROUTES_MAX,
    SYS_FILTERS_MAX,
    U32,
    U64,
    ClientId,
    Counted,
    Epoch,
    PacketIdentifier,
    PartitionNumber,
    Qos,
    ReasonCode,
    TopicText,
    UserText,
)
from wire.messages.redispatch import SharePick
from wire.messages.wills import SessionWill

__all__ = [
    "Claim",
    "Claims",
    "CloseSession",
    "FiltersListed",
    "InboundRecorded",
    "InboundReleased",
    "KickSession",
    "ListFilters",
    "OpenSession",
    "PollClaims",
    "RecordInbound",
    "ReleaseInbound",
    "SessionClosed",
    "SessionExpired",
    "SessionKicked",
    "SessionOpened",
    "SessionSubscribed",
    "SessionSubscription",
    "SessionUnsubscribed",
    "SubscribeSession",
    "UnsubscribeSession",
]


class SessionSubscription(msgspec.Struct, array_like=True):
    """One subscription of a session; topic_filter as the client wrote it, $share included."""

    topic_filter: TopicText
    qos: Qos = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: Qos = 0
    identifier: U32 = 0  # 0: none
    merged: bool = False  # shares one copy with the session's other merged matches


class OpenSession(msgspec.Struct, array_like=True, tag=1):  # of CONNECTS frames, as the next three
    """Edge to the client ID's partition: this connection claims the client ID."""

    request: U64
    partition: PartitionNumber
    partition_epoch: Epoch
    client_id: ClientId
    connection: U64  # the edge's number of the connection, never reused within an incarnation
    clean_start: bool
    expiry_s: U32  # 0: ephemeral; 0xFFFFFFFF: never
    will: SessionWill | None = None
    protocol_version: Annotated[int, Meta(ge=3, le=5)] = 5
    receive_maximum: PacketIdentifier = 64  # outbound window
    answered_below: U64 = 0  # all lower requests of the edge to this partition are answered
    withdrawn: bool = False  # the connection is closed: end it if it was opened, do not open it now
    may_create: bool = True  # a stored session; False: only one that exists may be resumed or replaced
    owner: UserText = ""  # user of the connection; a client ID of another user is refused
    owner_made: Counted = 0  # policy_epoch at which that user was created
    judged: U64 = 0  # digest of the rules by which the edge authorizes filters; 0: no rules
    # Limits of the user, its groups and roles; 0: the partition's own alone, which is also the maximum.
    sessions_max: U64 = 0  # stored sessions of that user, in all partitions
    queue_messages_max: U64 = 0  # of the session's queue
    queue_bytes_max: U64 = 0


class SessionOpened(msgspec.Struct, array_like=True, tag=1):
    """The claim is committed. Pushes for a durable session follow on the same link."""

    request: U64
    partition: PartitionNumber
    partition_epoch: Epoch
    reason_code: ReasonCode  # 0, or the refusal (CONNACK codes)
    owner_epoch: U64 = 0
    session: U64 = 0  # 0: ephemeral
    session_present: bool = False
    # Only where they were granted under another ``judged``: the edge authorizes them again, or unsubscribes.
    subscriptions: Annotated[list[SessionSubscription], Meta(max_length=ROUTES_MAX)] = []
    judged: bool = False  # all were granted in full under this ``judged``; neither this nor filters: use ListFilters
    # Those under $SYS: metrics of an edge, unknown to partitions. An excess is left out.
    sys_filters: Annotated[list[SessionSubscription], Meta(max_length=SYS_FILTERS_MAX)] = []


class CloseSession(msgspec.Struct, array_like=True, tag=2):
    """The connection ended. ``clean``: DISCONNECT 0x00 was read, so the will is discarded."""

    request: U64
    partition: PartitionNumber
    partition_epoch: Epoch
    client_id: ClientId
    owner_epoch: U64
    clean: bool
    expiry_s: Annotated[int, Meta(ge=-1, lt=1 << 32)] = -1  # changed at DISCONNECT; -1: as before


class SessionClosed(msgspec.Struct, array_like=True, tag=2):
    """Committed (durable, or with a will), or forgotten (ephemeral).

    ``accepted``: the connection owned the client ID until now, so a DISCONNECT 0x00 discarded its will.
    """

    request: U64
    accepted: bool = False


class SessionExpired(ControlMessage, tag="SessionExpired"):
    """Primary to some live edge, once and without a reply: a session expired; the edge may publish an event."""

    partition: PartitionNumber
    partition_epoch: Epoch
    client_id: ClientId
    owner: UserText = ""


class KickSession(ControlMessage, tag="KickSession"):
    """Storage to the edge of an older connection: another one owns the client ID; send 0x8E, stop reading."""

    request: U64
    client_id: ClientId
    connection: U64
    owner_epoch: U64  # of the older connection


class SessionKicked(ControlMessage, tag="SessionKicked"):
    """The older connection is closed. ``clean``: it had sent DISCONNECT 0x00 before."""

    request: U64
    client_id: ClientId
    clean: bool = False
    owner_epoch: U64 = 0  # of the request: relayed answers may arrive late


class SubscribeSession(ControlMessage, tag="SubscribeSession"):
    """SUBSCRIBE of a durable session; answered when committed and all its routes are confirmed."""

    request: U64
    partition: PartitionNumber
    partition_epoch: Epoch
    session: U64
    owner_epoch: U64
    subscriptions: Annotated[list[SessionSubscription], Meta(max_length=ROUTES_MAX)]
    read: U64 = 0  # first request of the same SUBSCRIBE, it identifies the following retained read; 0: this one
    # Positions of filters that a deny overlaps: each delivery by them is authorized.
    partial: Annotated[list[U32], Meta(max_length=ROUTES_MAX)] = []
    judged: U64 = 0  # digest of the authorizing rules, stored with the session; without a filter: for all of them


class SessionSubscribed(ControlMessage, tag="SessionSubscribed"):
    """One reason code per subscription; ``existed`` marks filters that the session had before (retain handling 1)."""

    request: U64
    reason_codes: Annotated[list[ReasonCode], Meta(max_length=ROUTES_MAX)]
    existed: Annotated[list[bool], Meta(max_length=ROUTES_MAX)]


class UnsubscribeSession(ControlMessage, tag="UnsubscribeSession"):
    """UNSUBSCRIBE of a durable session, or the removal of filters that its user lost the right to."""

    request: U64
    partition: PartitionNumber
    partition_epoch: Epoch
    session: U64
    owner_epoch: U64
    topic_filters: Annotated[list[TopicText], Meta(max_length=ROUTES_MAX)]
    revoked: bool = False  # by the edge: the session's queued messages of a shared subscription go to other members


class SessionUnsubscribed(ControlMessage, tag="SessionUnsubscribed"):
    """One reason code per filter (0x00 or 0x11)."""

    request: U64
    reason_codes: Annotated[list[ReasonCode], Meta(max_length=ROUTES_MAX)]


class ListFilters(ControlMessage, tag="ListFilters"):
    """Edge to the partition of a live session: list the next of the filters that it had at the first request."""

    request: U64
    partition: PartitionNumber
    partition_epoch: Epoch
    session: U64
    owner_epoch: U64
    skip: U32 = 0


class FiltersListed(ControlMessage, tag="FiltersListed"):
    """A page of a session's current filters; removed ones are left out."""

    request: U64
    subscriptions: Annotated[list[SessionSubscription], Meta(max_length=ROUTES_MAX)] = []
    next_skip: U32 = 0  # 0: it was the last page
    again: bool = False  # this node does not know the first request: restart


class RecordInbound(ControlMessage, tag="RecordInbound"):
    """QoS 2 PUBLISH of a durable publisher, before any fan-out; repeats get the same origin until released."""

    request: U64
    partition: PartitionNumber
    partition_epoch: Epoch
    session: U64
    owner_epoch: U64
    packet_identifier: PacketIdentifier
    picks: Annotated[
        list[SharePick], Meta(max_length=ROUTES_MAX)
    ] = []  # stored unless a pick of that group with this or a higher attempt is


class InboundRecorded(ControlMessage, tag="InboundRecorded"):
    """The origin is (session, counter); committed."""

    request: U64
    counter: U64
    reason_code: ReasonCode = 0
    picks: Annotated[
        list[SharePick], Meta(max_length=ROUTES_MAX)
    ] = []  # all recorded picks: use these instead of new ones


class ReleaseInbound(ControlMessage, tag="ReleaseInbound"):
    """PUBREL, or a PUBREC of 0x80 and above before it is sent: delete the record durably first."""

    request: U64
    partition: PartitionNumber
    partition_epoch: Epoch
    session: U64
    owner_epoch: U64
    packet_identifier: PacketIdentifier


class InboundReleased(ControlMessage, tag="InboundReleased"):
    """Committed; also if the identifier had no record."""

    request: U64


class PollClaims(ControlMessage, tag="PollClaims"):
    """New primary to every live edge: list the connections of this partition."""

    request: U64
    partition: PartitionNumber
    partition_epoch: Epoch


class Claim(msgspec.Struct, array_like=True):
    """One live connection of an edge, and its open requests."""

    client_id: ClientId
    connection: U64
    owner_epoch: U64
    session: U64 = 0
    owner: UserText = ""
    owner_made: Counted = 0


class Claims(ControlMessage, tag="Claims"):
    """After this the edge ignores SessionOpened of a lower partition_epoch. A long list comes in pieces, in order."""

    request: U64
    partition: PartitionNumber
    partition_epoch: Epoch
    claims: Annotated[list[Claim], Meta(max_length=MEMBERS_MAX)]
    first: bool = True  # earlier pieces are void
    last: bool = True  # the list of claims is complete
