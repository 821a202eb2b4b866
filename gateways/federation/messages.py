"""The ten messages between federation agents, and the link message ``kept``: fields, bounds and encoding.

``decode`` accepts only well-formed messages; other bytes raise ``MalformedFederationMessage`` with a counted reason,
and
no other exception. The agent authorizes messages. Tags are the two letters of the federation paper.
Decision: docs/adr/0086-federation.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import msgspec
from msgspec import Struct

from mqtt.errors import MqttError
from mqtt.properties import Properties, decode_properties, encode_properties
from mqtt.reasons import PacketType
from mqtt.topics import validate_topic_filter, validate_topic_name
from wire.decoding import Payload, Unreadable, strictly

__all__ = [
    "ARRIVED_MAX",
    "DISTANCE_MAX",
    "HOPS_MAX",
    "LEVELS_MAX",
    "MESSAGES",
    "MESSAGE_BYTES_MAX",
    "NEIGHBOURS_MAX",
    "VERSION",
    "CoreAnnouncement",
    "CustodyAck",
    "Federate",
    "HelloBack",
    "MalformedFederationMessage",
    "Message",
    "NeighbourHello",
    "Reconsider",
    "ReconsiderTopicCore",
    "SubscriptionRequest",
    "Topic",
    "TopicCores",
    "TopicMessage",
    "TopicSubscribe",
    "TopologyUpdate",
    "decode",
    "encode",
    "pack_properties",
    "unpack_properties",
]

VERSION = 1  # of the messages; other versions are ignored
MESSAGE_BYTES_MAX = 8 * 1024 * 1024 - 1  # of one frame (wire/messages/frames.py); larger ones are refused
DISTANCE_MAX = 255
HOPS_MAX = 32  # of a topic message
LEVELS_MAX = 128  # of a filter
NAME_MAX = 64
NEIGHBOURS_MAX = 1024  # equal to the largest number of agents
NAMES_MAX = 4096  # members of a filter, destinations of a message
TOPICS_MAX = 10_001  # in one page; one more than interests_max, so that an excess is detected and counted
ADDRESSES_MAX = 16
ARRIVED_MAX = 64  # agents whose messages are counted
ADDRESS_MAX = 300
WHY_MAX = 200
QOS_MAX = 2
DIGESTS_BYTES = 256 * 8  # of a filter's registers; empty without a comparison
U64_MAX = (1 << 64) - 1
KNOWN_TOPICS_MAX, KNOWN_TOPIC_MAX = 4_096, 256  # cached valid topics, and the length of one


class MalformedFederationMessage(Exception):
    """Malformed bytes, or a message beyond the bounds; ``reason`` is a counter label."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class NeighbourHello(Struct, frozen=True, array_like=True, tag="hl"):
    """Liveness probe of a neighbour."""

    seq: int


class HelloBack(Struct, frozen=True, array_like=True, tag="hb"):
    """Answer to ``NeighbourHello`` with its number."""

    seq: int


class Federate(Struct, frozen=True, array_like=True, tag="fd"):
    """An agent's announcement of itself, flooded.

    Attributes:
      neighbours: Those that are up.
      arrived: Number of received QoS 1 and 2 messages without an expiry, by capturing agent; at most 64 agents. None:
        this agent does not count.
    """

    agent: str
    id: int
    incarnation: int
    seq: int
    distance: int
    version: int
    addresses: tuple[str, ...]
    neighbours: tuple[str, ...]
    arrived: tuple[tuple[str, int], ...] | None = None


class Reconsider(Struct, frozen=True, array_like=True, tag="rc"):
    """Two names have one id: sent to the greater name, which draws a new one."""

    id: int
    lower: str
    greater: str
    distance: int = 0


class CoreAnnouncement(Struct, frozen=True, array_like=True, tag="ca"):
    """Announcement of the management core, flooded: common settings, and a digest of the live agents."""

    core: str
    incarnation: int
    seq: int
    distance: int
    members_digest: int
    dedup_s: float
    hold_s: float


class Topic(Struct, frozen=True, array_like=True):
    """One filter in a page of its core.

    Attributes:
      seq: Increases with each announcement of the filter.
      members: Agents that want it, including absent ones.
      digest: Of the core's retained registers.
      is_ended: The core resigns; the members elect another one.
    """

    filter: str
    seq: int
    qos: int
    members: tuple[str, ...]
    digest: int = 0
    is_ended: bool = False


class TopicCores(Struct, frozen=True, array_like=True, tag="tc"):
    """A page of filters of one core, flooded."""

    core: str
    incarnation: int
    distance: int
    topics: tuple[Topic, ...]


class ReconsiderTopicCore(Struct, frozen=True, array_like=True, tag="rt"):
    """A filter has two cores: sent to the greater one, which resigns."""

    filter: str
    lower: str
    greater: str
    distance: int = 0


class SubscriptionRequest(Struct, frozen=True, array_like=True):
    """Request about one filter: join, leave, or compare registers (only ``digests``)."""

    filter: str
    qos: int
    is_join: bool
    is_leave: bool = False
    digests: bytes = b""


class TopicSubscribe(Struct, frozen=True, array_like=True, tag="ts"):
    """Requests of a member to a core, hop by hop; agents on the path join the tree."""

    member: str
    incarnation: int
    seq: int
    core: str
    distance: int
    requests: tuple[SubscriptionRequest, ...]


class TopicMessage(Struct, frozen=True, array_like=True, tag="tm", gc=False):
    """A message of a client.

    Attributes:
      agent, incarnation, number: Its id, from the capturing agent.
      after: Number of the previous message of the same topic; 0 for none.
      custody: Its sequence number of QoS 1 and 2 messages on this link, from 1; 0 without custody.
      is_register: A retained register that the receiver lacks, and no message.
      stamp: Milliseconds UTC of a retained message's register; 0 for others.
      age_ms: Since it was captured; clocks are not compared.
      expiry_ms: Age at which it expires; 0 for never.
      properties: Block of PUBLISH, without expiry, alias and subscription identifiers.
      to: Destinations of this copy.
      path: Agents that forwarded it, in order, one per hop.
    """

    agent: str
    incarnation: int
    number: int
    after: int
    custody: int
    topic: str
    payload: bytes
    qos: int
    is_retained: bool
    is_register: bool
    stamp: int
    age_ms: int
    expiry_ms: int
    properties: bytes
    to: tuple[str, ...]
    path: tuple[str, ...]


class TopologyUpdate(Struct, frozen=True, array_like=True, tag="tu"):
    """Update by the management core, or by an operator's ``forget``: agents that joined or left."""

    core: str
    incarnation: int
    epoch: int
    distance: int
    joined: tuple[str, ...]
    left: tuple[str, ...]
    is_forget: bool
    why: str


class CustodyAck(Struct, frozen=True, array_like=True, tag="kept"):
    """Link acknowledgement: messages up to this custody number are in the sender's spool."""

    custody: int


Message: TypeAlias = (
    NeighbourHello
    | HelloBack
    | Federate
    | Reconsider
    | CoreAnnouncement
    | TopicCores
    | ReconsiderTopicCore
    | TopicSubscribe
    | TopicMessage
    | TopologyUpdate
    | CustodyAck
)

_known_names: set[str] = set()  # cached valid names: at most NAMES_MAX, and those of one message
_known_topics: set[str] = set()
_encoder = msgspec.msgpack.Encoder()
_decode: Callable[[Payload], Message] = strictly(msgspec.msgpack.Decoder(Message).decode, "message")
encode: Callable[[Message], bytes] = _encoder.encode


def decode(data: bytes) -> Message:
    """Return the message of a frame.

    Raises:
      MalformedFederationMessage: The bytes are malformed, or a field is out of its bounds.
    """
    if len(data) > MESSAGE_BYTES_MAX:
        raise MalformedFederationMessage("oversized")
    try:
        message = _decode(data)
    except Unreadable:
        raise MalformedFederationMessage("unreadable") from None
    _CHECKS[type(message)](message)
    return message


def unpack_properties(block: bytes) -> Properties:
    """Return the properties of a message; ``decode`` has checked the block."""
    return decode_properties(block, 0, PacketType.PUBLISH)[0] if block else {}


def pack_properties(properties: Properties) -> bytes:
    """Return the block of a message's properties; empty for none."""
    return encode_properties(properties) if properties else b""


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise MalformedFederationMessage(reason)


def _numbers(*values: int) -> None:
    for value in values:
        if not 0 <= value <= U64_MAX:
            raise MalformedFederationMessage("number")


def _name(name: str) -> None:
    if not 0 < len(name) <= NAME_MAX or "\0" in name:  # NUL separates names in rows of the spool
        raise MalformedFederationMessage("name")


def _names(names: Iterable[str], count: int, most: int) -> None:
    if count > most:
        raise MalformedFederationMessage("names")
    for name in names:
        _name(name)


def _check_and_cache(names: tuple[str, ...]) -> None:
    """Check and cache names: most messages repeat them."""
    _names(names, len(names), NAMES_MAX)
    if len(_known_names) >= NAMES_MAX:
        _known_names.clear()
    _known_names.update(names)


def _topic(topic: str) -> None:
    try:
        validate_topic_name(topic)
    except MqttError:
        raise MalformedFederationMessage("topic") from None
    if topic.startswith("$"):
        raise MalformedFederationMessage("topic")
    if len(_known_topics) >= KNOWN_TOPICS_MAX:
        _known_topics.clear()
    if len(topic) <= KNOWN_TOPIC_MAX:
        _known_topics.add(topic)


def _filter(topic_filter: str) -> None:
    try:
        validate_topic_filter(topic_filter)
    except MqttError:
        raise MalformedFederationMessage("filter") from None
    if topic_filter.startswith("$") or topic_filter.count("/") >= LEVELS_MAX:
        raise MalformedFederationMessage("filter")


def _distance(distance: int) -> None:
    if not 0 <= distance <= DISTANCE_MAX:
        raise MalformedFederationMessage("distance")


def _origin(incarnation: int, *others: int) -> None:
    _require(incarnation >= 1, "number")
    _numbers(incarnation, *others)


def _check_seq(message: NeighbourHello | HelloBack) -> None:
    _numbers(message.seq)


def _check_kept(message: CustodyAck) -> None:
    _numbers(message.custody)


def _check_federate(message: Federate) -> None:
    _require(message.version == VERSION, "version")
    _name(message.agent)
    _origin(message.incarnation, message.id, message.seq)
    _require(message.id >= 1 and message.seq >= 1, "number")
    _distance(message.distance)
    _names(message.neighbours, len(message.neighbours), NEIGHBOURS_MAX)
    _require(len(message.addresses) <= ADDRESSES_MAX, "addresses")
    _require(all(len(address) <= ADDRESS_MAX for address in message.addresses), "addresses")
    arrived = message.arrived or ()
    _names((name for name, _ in arrived), len(arrived), ARRIVED_MAX)
    _numbers(*(count for _, count in arrived))


def _check_reconsider(message: Reconsider) -> None:
    _numbers(message.id)
    _distance(message.distance)
    _name(message.lower)
    _name(message.greater)
    _require(message.lower < message.greater, "name")


def _check_announcement(message: CoreAnnouncement) -> None:
    _name(message.core)
    _origin(message.incarnation, message.seq, message.members_digest)
    _distance(message.distance)
    _require(1.0 <= message.dedup_s <= 1e9 and 1.0 <= message.hold_s <= 1e9, "setting")


def _check_topics(message: TopicCores) -> None:
    _name(message.core)
    _origin(message.incarnation)
    _distance(message.distance)
    _require(len(message.topics) <= TOPICS_MAX, "interests")
    for topic in message.topics:
        _filter(topic.filter)
        _numbers(topic.seq, topic.digest)
        _require(0 <= topic.qos <= QOS_MAX, "qos")
        _names(topic.members, len(topic.members), NAMES_MAX)


def _check_two_cores(message: ReconsiderTopicCore) -> None:
    _filter(message.filter)
    _distance(message.distance)
    _name(message.lower)
    _name(message.greater)
    _require(message.lower != message.greater, "name")


def _check_subscribe(message: TopicSubscribe) -> None:
    _name(message.member)
    _name(message.core)
    _origin(message.incarnation, message.seq)
    _distance(message.distance)
    _require(len(message.requests) <= TOPICS_MAX, "interests")
    for request in message.requests:
        _filter(request.filter)
        _require(0 <= request.qos <= QOS_MAX, "qos")
        _require(len(request.digests) in (0, DIGESTS_BYTES), "digests")


def _check_message(message: TopicMessage) -> None:
    number, qos, custody, to, path = message.number, message.qos, message.custody, message.to, message.path
    if number < 1 or message.incarnation < 1 or not 0 <= message.after < number or custody < 0:
        raise MalformedFederationMessage("number")  # msgpack has no numbers above U64_MAX
    if message.stamp < 0 or message.age_ms < 0 or message.expiry_ms < 0:
        raise MalformedFederationMessage("number")
    if not 0 <= qos <= QOS_MAX:
        raise MalformedFederationMessage("qos")
    if (qos > 0 and not message.is_register) is not (custody > 0):
        raise MalformedFederationMessage("custody")
    if not 0 < len(path) <= HOPS_MAX:
        raise MalformedFederationMessage("hops")
    if not 0 < len(to) <= NAMES_MAX:  # also of known names: one may be repeated a million times
        raise MalformedFederationMessage("names")
    if message.agent not in _known_names or not _known_names.issuperset(to) or not _known_names.issuperset(path):
        _check_and_cache((message.agent,))
        _check_and_cache(to)
        _check_and_cache(path)
    if message.topic not in _known_topics:
        _topic(message.topic)
    if message.properties:
        try:
            _, end = decode_properties(message.properties, 0, PacketType.PUBLISH)
        except MqttError:
            raise MalformedFederationMessage("properties") from None
        _require(end == len(message.properties), "properties")


def _check_update(message: TopologyUpdate) -> None:
    _name(message.core)
    _origin(message.incarnation, message.epoch)
    _distance(message.distance)
    _names(message.joined, len(message.joined), NAMES_MAX)
    _names(message.left, len(message.left), NAMES_MAX)
    _require(len(message.why) <= WHY_MAX, "text")


_CHECKS: dict[type[Struct], Callable[..., None]] = {
    NeighbourHello: _check_seq,
    HelloBack: _check_seq,
    Federate: _check_federate,
    Reconsider: _check_reconsider,
    CoreAnnouncement: _check_announcement,
    TopicCores: _check_topics,
    ReconsiderTopicCore: _check_two_cores,
    TopicSubscribe: _check_subscribe,
    TopicMessage: _check_message,
    TopologyUpdate: _check_update,
    CustodyAck: _check_kept,
}
MESSAGES: tuple[type[Struct], ...] = tuple(_CHECKS)
