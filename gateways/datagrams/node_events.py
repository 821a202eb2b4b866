"""Events of a datagram node and the output of its steps: the doors of its core."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol, TypeAlias

from msgspec import Struct, field

from gateways.datagrams.messages import DATAGRAM_BYTES_MAX, Code, Datagram, Endpoint
from gateways.datagrams.subscribers import DatagramPeer

__all__ = [
    "Arrived",
    "ClusterAnswered",
    "ClusterGranted",
    "ClusterMessage",
    "ClusterPublish",
    "DatagramNodeSettings",
    "DatagramReady",
    "Event",
    "Sent",
    "TopicAuthorizer",
]


class TopicAuthorizer(Protocol):
    """The rules, which are those of MQTT; ``name`` is "" for who has none."""

    def may_publish(self, name: str, topic: str, qos: int) -> bool:
        """Return whether a device may publish to a topic."""

    def may_subscribe(self, name: str, topic_filter: str, qos: int) -> bool:
        """Return whether a device may have all that a filter matches."""


class DatagramNodeSettings(Struct, frozen=True):
    """Bounds of one node; conf/udp_settings.py has their defaults.

    Attributes:
        endpoint: Where others reach this node.
        holds_from: Until then a node that ran before decides about nothing, does not ask its parent and takes no
            subscription of it. At a root subscribers say again meanwhile what they want; below one the leases end
            that an incarnation before may have given, and of which this one knows nothing.
        redirects: A device is sent to the node that decides, for another node's datagrams do not reach it: it has a
            session with those alone that it opened one with.
        attached: The node is a client of a cluster, which takes part in each message.
        first_number: Of what it sends, greater than of its incarnations before.
        packet_bytes_max: Of a packet, so that with what security adds it is one datagram.
    """

    subtree: str
    endpoint: Endpoint
    grants: Mapping[str, tuple[str, ...]]
    incarnation: int
    first_number: int
    holds_from: float = 0.0
    redirects: bool = False
    attached: bool = False
    subscriptions_max: int = 100_000
    subscriptions_per_address_max: int = 64
    publishers_max: int = 10_000
    joins_per_second_max: int = 50
    packet_bytes_max: int = DATAGRAM_BYTES_MAX


class Arrived(NamedTuple):
    """A datagram came.

    Attributes:
        name: Verified name of the sender, "" on a listener in clear.
        length: Bytes of the datagram.
        is_proved: The address has proved that it receives.
    """

    peer: DatagramPeer
    name: str
    packet: Datagram
    length: int
    is_proved: bool


class ClusterAnswered(NamedTuple):
    """The cluster took a message of QoS 1 (None), or it is away or refuses it (why)."""

    token: int
    refusal: Code | None


class ClusterGranted(NamedTuple):
    """The cluster answered a subscription."""

    filter: str
    is_granted: bool


class ClusterMessage(NamedTuple):
    """A message of the cluster; its acknowledgement is asked for by ``DatagramReady.done``."""

    topic: str
    payload: bytes
    qos: int
    token: int


Event: TypeAlias = Arrived | ClusterAnswered | ClusterGranted | ClusterMessage


class Sent(NamedTuple):
    """A packet to send; one longer than ``bytes_max`` (0: no bound) is counted and not sent."""

    peer: DatagramPeer
    packet: Datagram
    bytes_max: int = 0


class ClusterPublish(NamedTuple):
    """A message for the cluster; at QoS 1 ``ClusterAnswered`` has the token."""

    topic: str
    payload: bytes
    qos: int
    token: int


class DatagramReady(Struct):
    """Work for the shell after a step.

    Attributes:
        publish: To the cluster.
        subscribe, unsubscribe: Filters at the cluster.
        done: Tokens of the cluster's messages that may be acknowledged.
        proved: Peers whose address is theirs from now on.
        join_refused: Code by which the parent refused this node, None if it did not.
        given_up: Subscribers that let five tries pass, and are not waited for until they speak.
    """

    send: list[Sent] = field(default_factory=list)
    publish: list[ClusterPublish] = field(default_factory=list)
    subscribe: list[str] = field(default_factory=list)
    unsubscribe: list[str] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    proved: list[DatagramPeer] = field(default_factory=list)
    given_up: list[DatagramPeer] = field(default_factory=list)
    join_refused: int | None = None
