"""Events of a datagram node and the output of its steps: the interface of its core."""

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
    """The rules, in MQTT terms; ``name`` is "" for an unnamed device."""

    def may_publish(self, name: str, topic: str, qos: int) -> bool:
        """Return whether a device may publish to a topic."""

    def may_subscribe(self, name: str, topic_filter: str, qos: int) -> bool:
        """Return whether a device may receive all messages that a filter matches."""


class DatagramNodeSettings(Struct, frozen=True):
    """Bounds of one node; conf/udp_settings.py has their defaults.

    Attributes:
      endpoint: Address of this node for other nodes.
      holds_from: Until then a restarted node decides for no topic, sends no JOIN and accepts no subscription of its
        parent. Meanwhile subscribers of a root renew, and below a root leases granted by a former incarnation expire.
      redirects: A device is sent to the deciding node, since datagrams of another node do not reach it: it accepts them
        only in sessions that it opened.
      attached: The node is a client of a cluster, which takes part in each message.
      first_number: Above all numbers of former incarnations.
      packet_bytes_max: Of a packet, so that with security overhead it is one datagram.
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
    """A received datagram.

    Attributes:
      name: Verified name of the sender, "" on a listener in clear.
      length: Bytes of the datagram.
      is_proved: The sender has proved that it receives at this address.
    """

    peer: DatagramPeer
    name: str
    packet: Datagram
    length: int
    is_proved: bool


class ClusterAnswered(NamedTuple):
    """The cluster accepted a QoS 1 message (None), or refused it or is down (code)."""

    token: int
    refusal: Code | None


class ClusterGranted(NamedTuple):
    """The cluster answered a subscription."""

    filter: str
    is_granted: bool


class ClusterMessage(NamedTuple):
    """A message of the cluster; ``DatagramReady.done`` acknowledges it."""

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
    """A message for the cluster; at QoS 1 ``ClusterAnswered`` has the same token."""

    topic: str
    payload: bytes
    qos: int
    token: int


class DatagramReady(Struct):
    """Output of a step, for the shell.

    Attributes:
      publish: Messages to the cluster.
      subscribe, unsubscribe: Filters at the cluster.
      done: Tokens of the cluster's messages to acknowledge.
      proved: Peers with a newly proved address.
      join_refused: Code of the parent's refusal, None if there is none.
      given_up: Subscribers that did not answer five tries.
    """

    send: list[Sent] = field(default_factory=list)
    publish: list[ClusterPublish] = field(default_factory=list)
    subscribe: list[str] = field(default_factory=list)
    unsubscribe: list[str] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    proved: list[DatagramPeer] = field(default_factory=list)
    given_up: list[DatagramPeer] = field(default_factory=list)
    join_refused: int | None = None
