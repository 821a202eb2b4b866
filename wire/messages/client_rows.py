"""Rows of queries about clients and sessions. A field is None if the answering node does not know it.

Times are UTC in milliseconds by the clock of the node that answers, and durations are seconds.
"""

from typing import TypeAlias

import msgspec

__all__ = [
    "ClientDetail",
    "ClientRow",
    "InFlightRow",
    "ListenerRow",
    "QueuedMessageRow",
    "SessionDetail",
    "SessionSummaryRow",
    "SubscriptionListRow",
]

Payload: TypeAlias = bytes  # a column below is called bytes


class ClientRow(msgspec.Struct, omit_defaults=True):
    """A connection of a client at an edge."""

    client_id: str | None = None
    user: str | None = None
    state: str | None = None  # phase of the connection: "open", "opening", ...
    node: str | None = None
    proto: str | None = None  # "3.1", "3.1.1", "5.0"
    address: str | None = None  # ip:port, behind a balancer the reported one
    listener: str | None = None
    keep_alive_s: int | None = None
    expiry_s: int | None = None
    connected_at_ms: int | None = None
    inflight: int | None = None  # unacknowledged QoS 1 and 2 packets to it
    queued: int | None = None  # messages queued at this edge for an ephemeral session; of a durable one: its session
    oldest_s: float | None = None  # of those
    number: int | None = None  # of the connection, never used again in one incarnation
    clean_start: bool | None = None
    subscriptions: int | None = None  # of an ephemeral session; of a durable one: its session
    receive_maximum: int | None = None  # as announced, limited by its user, roles and listener
    dropped: int | None = None
    rtt_p99_ms: float | None = None  # written to acknowledged, of one packet at a time: a bound, by powers of two
    partition: int | None = None
    owner_epoch: int | None = None
    session: int | None = None  # number of the durable session, 0: ephemeral
    unsent_bytes: int | None = None
    groups: list[str] | None = None
    roles: list[str] | None = None


class ClientDetail(ClientRow, omit_defaults=True):
    """One connection with all state that can delay or stop its messages."""

    window: int | None = None  # QoS 1 and 2 packets that may be in flight to it
    window_max: int | None = None  # edge.outbound_window_max
    unsent_bytes_max: int | None = None  # edge.output_buffer_bytes_max: above it publishers wait, and QoS 0 is dropped
    unsent_since_ms: int | None = None  # start of exceeding that bound
    lagging: bool | None = None  # QoS 0 towards it is dropped now
    oldest_packet: int | None = None  # packet identifier of the oldest unacknowledged packet
    window_full_since_ms: int | None = None
    retained_reads: int | None = None  # running for it: live messages wait for their copies
    held_messages: int | None = None
    retained_left_s: float | None = None  # maximum remaining wait of live messages
    unfinished: int | None = None  # its own unanswered QoS 1 and 2 PUBLISH packets
    unfinished_max: int | None = None
    unfinished_packets: list[int] | None = None  # the first of them
    paused: list[str] | None = None  # reasons why its packets are not read: "rate", "quota", "slow_subscriber", ...
    waits_for: list[str] | None = None  # client IDs of slow subscribers that pause it
    fenced: bool | None = None  # this edge has no lease and delivers no messages
    fenced_s: float | None = None  # since the lease ended
    drain: bool | None = None
    heard_at_ms: int | None = None
    ends_at_ms: int | None = None  # end of its keep-alive time
    will_topic: str | None = None
    maximum_packet_size: int | None = None
    may_receive: bool | None = None  # the topic of the query
    filters: list[str] | None = None  # of an ephemeral session, the first ones
    tls: str | None = None  # version and cipher
    traced: list[str] | None = None  # names of the traces that mark it


class SessionSummaryRow(msgspec.Struct, omit_defaults=True):
    """A session at its partition's primary; ``durable`` False: a connection whose session ends with it."""

    client_id: str | None = None
    online: bool | None = None
    node: str | None = None  # edge of the connection
    queued: int | None = None  # unfinished entries
    bytes: int | None = None
    oldest_s: float | None = None
    oldest_lower_bound: bool | None = None  # the oldest entry has no time of arrival: its age is a lower bound
    expires_in_s: int | None = None  # -1: never, or not while it is connected
    durable: bool | None = None
    session: int | None = None
    partition: int | None = None
    storage: str | None = None  # node that answers
    replicas: list[str] | None = None
    last_seq: int | None = None
    will: bool | None = None
    user: str | None = None
    subscriptions: int | None = None
    inflight: int | None = None
    dropped: int | None = None
    expiry_s: int | None = None
    connection: int | None = None  # number of the connection at its edge
    owner_epoch: int | None = None


class SessionDetail(SessionSummaryRow, omit_defaults=True):
    """One session with all state that can block its queue."""

    window: int | None = None
    out: int | None = None  # of the window, taken
    out_bytes: int | None = None
    unsent: int | None = None  # have an identifier and wait for the window
    head_seq: int | None = None
    head_packet: int | None = None
    head_topic: str | None = None
    head_state: str | None = None  # "queued", "sent", "released"
    queue_max: int | None = None  # storage.queue_messages_max, or the stricter one of its user and roles
    queue_bytes_max: int | None = None
    retained_reads: int | None = None
    holds: bool | None = None  # live messages wait for retained copies
    retained_left_s: float | None = None  # maximum remaining wait
    waiting_s: float | None = None  # age of the oldest entry that waits for the window
    opening: bool | None = None  # a CONNECT waits for the end of the former connection
    away_since_s: float | None = None
    behind_commit: bool | None = None  # pushes wait for the commit of an operation
    will_topic: str | None = None
    will_delay_s: int | None = None
    inbound: int | None = None  # unreleased QoS 2 messages of the client
    in_sync: int | None = None  # copies of its partition
    acknowledges: bool | None = None  # enough copies are in sync


class QueuedMessageRow(msgspec.Struct, omit_defaults=True):
    """An entry of a session's queue, in order."""

    seq: int | None = None
    topic: str | None = None
    qos: int | None = None
    retain: bool | None = None
    bytes: int | None = None
    state: str | None = None  # "queued", "sent", "released"
    packet: int | None = None  # identifier, 0: none yet
    arrived_at_ms: int | None = None  # None: a row of an older store
    age_s: float | None = None
    expires_in_s: float | None = None  # None: never
    origin: str | None = None
    share: str | None = None
    copy: bool | None = None  # of a retained message
    payload: Payload | None = None  # role operator, its head


class InFlightRow(msgspec.Struct, omit_defaults=True):
    """A QoS 1 or 2 message in flight to a client or from it."""

    client_id: str | None = None
    direction: str | None = None  # "to": towards the client; "from": published by it
    packet: int | None = None
    qos: int | None = None
    state: str | None = None  # "sent", "released", "waiting"; of its own: "unfinished", "unreleased"
    seq: int | None = None  # of a durable session's queue
    topic: str | None = None
    origin: str | None = None
    age_s: float | None = None
    waits_for: list[str] | None = None  # of its own: unacknowledged destinations


class SubscriptionListRow(msgspec.Struct, omit_defaults=True):
    """A subscription of a session."""

    client_id: str | None = None
    filter: str | None = None
    qos: int | None = None
    share: str | None = None
    no_local: bool | None = None
    retain_as_published: bool | None = None
    retain_handling: int | None = None
    identifier: int | None = None
    node: str | None = None
    durable: bool | None = None
    partition: int | None = None
    session: int | None = None
    partial: bool | None = None  # granted in part: each message is authorized
    since_ms: int | None = None  # None: it is in a row of an older version


class ListenerRow(msgspec.Struct, omit_defaults=True):
    """A listener of an edge."""

    listener: str | None = None
    kind: str | None = None
    bind: str | None = None
    state: str | None = None  # "open", "paused", "drained"
    connections: int | None = None
    connections_max: int | None = None
    node: str | None = None
    tls: bool | None = None
    client_certificates: bool | None = None  # every client must have one
    anonymous: bool | None = None  # clients without credentials are accepted
