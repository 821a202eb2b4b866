"""The six messages as structs, and their encoding in a datagram: Protocol Buffers, one Packet each.

``decode`` accepts only well-formed messages: topics and filters as in MQTT, numbers in their ranges. For a malformed
request it gives the refusal code, if its request number is readable. The node authorizes messages. The format is
``stratamq_udp.proto``, documented in docs/udp.md.
"""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from google.protobuf.message import DecodeError
from msgspec import Struct

from gateways.datagrams import stratamq_udp_pb2
from mqtt.errors import MqttError
from mqtt.topics import validate_topic_filter, validate_topic_name

__all__ = [
    "DATAGRAM_BYTES_MAX",
    "HOPS_MAX",
    "Body",
    "Code",
    "Datagram",
    "DatagramPublish",
    "DatagramSubscribe",
    "Endpoint",
    "Join",
    "MalformedDatagram",
    "PubAccept",
    "PubAck",
    "PubConnect",
    "RejectedRequest",
    "decode",
    "encode",
]

VERSION = 1
DATAGRAM_BYTES_MAX = 1200  # with security overhead: no fragmentation on any path
HOPS_MAX = 16
COOKIE_BYTES_MAX = 16
NODES_MAX = 32  # of one answer
LEVELS_MAX = 128
PORT_MAX = 65_535
REQUEST_FIELD, ANSWER_FIELDS = 2, (11, 13)  # of Packet in stratamq_udp.proto; PUBACCEPT and PUBACK
ANSWERS = ("pubaccept", "puback")
HEAD_FIELDS_MAX = 4  # examined in a packet that Protocol Buffers rejects
VARINT_BYTES_MAX = 10
pb: Any = stratamq_udp_pb2


class MalformedDatagram(Exception):
    """A malformed datagram; the text is the reason, without its bytes.

    Attributes:
      rejected: The request to refuse; None for an answer, and without a readable request number.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.rejected: Datagram | None = None


class Code(enum.IntEnum):
    """Codes of PUBACK; 16 and above refuse."""

    DISTRIBUTED = 0
    SUBSCRIBED = 1
    JOINED = 2
    DELIVERED = 3
    NOT_MINE = 16  # retry at the named node, or, without one, resolve again
    NOT_AUTHORIZED = 17
    TOO_LARGE = 18
    BUSY = 19
    MALFORMED = 20
    NOT_PROVED = 21  # repeat with the cookie
    TAKEN = 22  # the subtree has another holder


class Endpoint(NamedTuple):
    """Address of a node or device: 4 or 16 bytes, and the port."""

    ip: bytes
    port: int

    def __str__(self) -> str:
        host = str(ipaddress.ip_address(self.ip))
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


class PubConnect(Struct, frozen=True):
    """Request for the node that decides for a topic."""

    topic: str
    reply_to: Endpoint | None = None
    hops: int = 0
    cookie: bytes = b""


class PubAccept(Struct, frozen=True):
    """Answer of the node that decides for the topic, and for all of ``subtree``."""

    subtree: str
    lease_s: int
    topic_number: int = 0
    cookie: bytes = b""


class DatagramPublish(Struct, frozen=True):
    """One message; ``topic`` is empty if a ``topic_number`` replaces it."""

    topic: str
    payload: bytes
    qos: int = 0
    number: int = 0
    topic_number: int = 0
    cookie: bytes = b""


class PubAck(Struct, frozen=True):
    """Answer to PUBLISH, SUBSCRIBE and JOIN."""

    code: int
    nodes: tuple[Endpoint, ...] = ()
    lease_s: int = 0
    receivers: int = 0
    cookie: bytes = b""


class DatagramSubscribe(Struct, frozen=True):
    """Request for the messages of a filter, for ``lease_s`` seconds; ``filter`` has ``#``, never ``*``.

    With ``keep_open`` it is sent to a node named in an answer: it keeps a NAT mapping open, and renews no lease.
    """

    filter: str
    qos: int = 0
    deliver_to: Endpoint | None = None
    lease_s: int = 300
    end: bool = False
    hops: int = 0
    cookie: bytes = b""
    relay: bool = False
    keep_open: bool = False


class Join(Struct, frozen=True):
    """Request of a node for jurisdiction over a subtree."""

    subtree: str
    incarnation: int
    node: Endpoint
    leave: bool = False
    cookie: bytes = b""


class RejectedRequest(Struct, frozen=True):
    """A malformed request, in place of its message; it is never encoded."""

    code: Code


Body: TypeAlias = PubConnect | PubAccept | DatagramPublish | PubAck | DatagramSubscribe | Join | RejectedRequest


class Datagram(Struct, frozen=True):
    """One datagram; an answer has the ``request`` of its request."""

    request: int
    body: Body


def encode(packet: Datagram) -> bytes:
    """Return the bytes of a packet; the sender checks DATAGRAM_BYTES_MAX."""
    match packet.body:
        # these two are the most frequent, and a dict halves the cost
        case PubAck(code, (), lease_s, receivers, cookie):
            answer = {"code": code, "lease_s": lease_s, "receivers": receivers, "cookie": cookie}
            return _serialize(pb.Packet(version=VERSION, request=packet.request, puback=answer))
        case DatagramPublish(topic, payload, qos, number, topic_number, cookie):
            message = {"topic": topic, "payload": payload, "qos": qos, "number": number}
            if topic_number or cookie:
                message |= {"topic_number": topic_number, "cookie": cookie}
            return _serialize(pb.Packet(version=VERSION, request=packet.request, publish=message))
    out = pb.Packet(version=VERSION, request=packet.request)
    match packet.body:
        case PubConnect(topic, reply_to, hops, cookie):
            _put(out.pubconnect, topic=topic, hops=hops, cookie=cookie)
            _put_endpoint(out.pubconnect.reply_to, reply_to)
        case PubAccept(subtree, lease_s, topic_number, cookie):
            _put(out.pubaccept, subtree=subtree, lease_s=lease_s, topic_number=topic_number, cookie=cookie)
        case PubAck(code, nodes, lease_s, receivers, cookie):
            _put(out.puback, code=code, lease_s=lease_s, receivers=receivers, cookie=cookie)
            for node in nodes:
                out.puback.nodes.add(ip=node.ip, port=node.port)
        case DatagramSubscribe() as ask:
            _put(out.subscribe, filter=ask.filter, qos=ask.qos, lease_s=ask.lease_s, end=ask.end, hops=ask.hops)
            _put(out.subscribe, cookie=ask.cookie, relay=ask.relay, keep_open=ask.keep_open)
            _put_endpoint(out.subscribe.deliver_to, ask.deliver_to)
        case Join(subtree, incarnation, node, leave, cookie):
            _put(out.join, subtree=subtree, incarnation=incarnation, leave=leave, cookie=cookie)
            _put_endpoint(out.join.node, node)
    return _serialize(out)


def decode(data: bytes, bytes_max: int = DATAGRAM_BYTES_MAX) -> Datagram:
    """Return the message of a datagram.

    Args:
      data: The packet, without security overhead.
      bytes_max: Bound of a packet.

    Raises:
      MalformedDatagram: The packet is malformed or too long.
    """
    try:
        found = pb.Packet.FromString(data)
    except DecodeError:
        raise _malformed("too long" if len(data) > bytes_max else "not a packet", _read_request_number(data)) from None
    kind = found.WhichOneof("body")
    try:
        if len(data) > bytes_max:
            raise MalformedDatagram("too long")
        if found.version != VERSION:
            raise MalformedDatagram("version")
        reader = _READERS.get(kind)
        if reader is None:
            raise MalformedDatagram("no message")
        return Datagram(found.request, reader(found))
    except MalformedDatagram as error:
        raise _malformed(str(error), 0 if kind in ANSWERS else found.request) from None


def _malformed(why: str, request: int) -> MalformedDatagram:
    made = MalformedDatagram(why)
    if request:
        made.rejected = Datagram(request, RejectedRequest(Code.TOO_LARGE if why == "too long" else Code.MALFORMED))
    return made


def _read_request_number(data: bytes) -> int:
    """Return the request number of an undecodable packet, for example with a topic that is not UTF-8.

    0 if the number does not precede the message, as all encoders write it, and for an answer.
    """
    at, request = 0, 0
    for _ in range(HEAD_FIELDS_MAX):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = _varint(data, at)
            request = value if number == REQUEST_FIELD else request
        else:
            return request if kind == 2 and number not in ANSWER_FIELDS else 0
    return 0


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at an offset and the next offset; 0 if there is none."""
    value = 0
    for index, byte in enumerate(data[at : at + VARINT_BYTES_MAX]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value & (1 << 64) - 1, at + index + 1
    return 0, len(data)


def _serialize(packet: Any) -> bytes:
    data: bytes = packet.SerializeToString()
    return data


def _put(message: Any, **values: Any) -> None:
    message.SetInParent()  # encodes a message even if all its fields have default values
    for name, value in values.items():
        if value:
            setattr(message, name, value)


def _put_endpoint(message: Any, endpoint: Endpoint | None) -> None:
    if endpoint is not None:
        message.ip, message.port = endpoint


def _pubconnect(found: Any) -> PubConnect:
    body = found.pubconnect
    reply_to = _endpoint(body.reply_to) if body.HasField("reply_to") else None
    return PubConnect(_topic(body.topic), reply_to, _hops(body.hops), _cookie(body.cookie))


def _pubaccept(found: Any) -> PubAccept:
    body = found.pubaccept
    return PubAccept(_subtree(body.subtree), body.lease_s, body.topic_number, _cookie(body.cookie))


def _publish(found: Any) -> DatagramPublish:
    body = found.publish
    topic, topic_number = body.topic, body.topic_number
    if bool(topic) == bool(topic_number):
        raise MalformedDatagram("topic or topic_number")
    if topic:
        _topic(topic)
    return DatagramPublish(topic, body.payload, _qos(body.qos), body.number, topic_number, _cookie(body.cookie))


def _puback(found: Any) -> PubAck:
    body = found.puback
    named = body.nodes
    if body.code > 255 or len(named) > NODES_MAX:
        raise MalformedDatagram("answer")
    nodes = tuple(map(_endpoint, named)) if named else ()
    return PubAck(body.code, nodes, body.lease_s, body.receivers, _cookie(body.cookie))


def _subscribe(found: Any) -> DatagramSubscribe:
    body = found.subscribe
    topic_filter = body.filter
    if topic_filter == "*" or topic_filter.endswith("/*"):
        topic_filter = topic_filter[:-1] + "#"
    try:
        validate_topic_filter(topic_filter, bytes_max=DATAGRAM_BYTES_MAX, levels_max=LEVELS_MAX)
    except MqttError:
        raise MalformedDatagram("filter") from None
    deliver_to = _endpoint(body.deliver_to) if body.HasField("deliver_to") else None
    hops, cookie = _hops(body.hops), _cookie(body.cookie)
    qos, lease_s, keep_open = _qos(body.qos), body.lease_s, body.keep_open
    return DatagramSubscribe(topic_filter, qos, deliver_to, lease_s, body.end, hops, cookie, body.relay, keep_open)


def _join(found: Any) -> Join:
    body = found.join
    return Join(_subtree(body.subtree), body.incarnation, _endpoint(body.node), body.leave, _cookie(body.cookie))


_READERS: dict[str, Callable[[Any], Body]] = {
    "pubconnect": _pubconnect,
    "pubaccept": _pubaccept,
    "publish": _publish,
    "puback": _puback,
    "subscribe": _subscribe,
    "join": _join,
}


def _topic(topic: str) -> str:
    try:
        validate_topic_name(topic, bytes_max=DATAGRAM_BYTES_MAX, levels_max=LEVELS_MAX)
    except MqttError:
        raise MalformedDatagram("topic") from None
    return topic


def _subtree(subtree: str) -> str:
    """Validate a subtree: the topmost topic in it, "" for all topics."""
    return _topic(subtree) if subtree else ""


def _endpoint(endpoint: Any) -> Endpoint:
    if len(endpoint.ip) not in (4, 16) or not 0 < endpoint.port <= PORT_MAX:
        raise MalformedDatagram("endpoint")
    return Endpoint(endpoint.ip, endpoint.port)


def _qos(qos: int) -> int:
    if qos > 1:
        raise MalformedDatagram("qos")
    return qos


def _hops(hops: int) -> int:
    if hops > HOPS_MAX:
        raise MalformedDatagram("hops")
    return hops


def _cookie(cookie: bytes) -> bytes:
    if len(cookie) > COOKIE_BYTES_MAX:
        raise MalformedDatagram("cookie")
    return cookie
