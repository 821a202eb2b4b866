"""The six messages as structs, and their form in a datagram: Protocol Buffers, one Packet each.

``decode`` lets only well-formed messages through: topics and filters as MQTT has them, numbers in their ranges. Of
another one it says by which code a node refuses it, where its request number can be read. What a message may do is the
node's to judge. The format is ``stratamq_udp.proto``, which docs/udp.md explains.
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
DATAGRAM_BYTES_MAX = 1200  # with what security adds: fits every path without fragments
HOPS_MAX = 16
COOKIE_BYTES_MAX = 16
NODES_MAX = 32  # of one answer
LEVELS_MAX = 128
PORT_MAX = 65_535
REQUEST_FIELD, ANSWER_FIELDS = 2, (11, 13)  # of Packet in stratamq_udp.proto; PUBACCEPT and PUBACK
ANSWERS = ("pubaccept", "puback")
HEAD_FIELDS_MAX = 4  # of a packet that Protocol Buffers does not read
VARINT_BYTES_MAX = 10
pb: Any = stratamq_udp_pb2


class MalformedDatagram(Exception):
    """A datagram that is no message; the text names why, without any of its bytes.

    Attributes:
        rejected: What a node answers by code; None for an answer, and where no request number can be read.
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
    NOT_MINE = 16  # ask the node that is named, or, without one, resolve again
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
    """Question who decides about a topic."""

    topic: str
    reply_to: Endpoint | None = None
    hops: int = 0
    cookie: bytes = b""


class PubAccept(Struct, frozen=True):
    """Answer of the node that decides about the topic, and about all of ``subtree``."""

    subtree: str
    lease_s: int
    topic_number: int = 0
    cookie: bytes = b""


class DatagramPublish(Struct, frozen=True):
    """One message; ``topic`` is empty where a ``topic_number`` stands for it."""

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
    """Wish for the messages of a filter, for ``lease_s`` seconds; ``filter`` has ``#``, never ``*``.

    With ``keep_open`` it goes to a node that an answer named: it keeps the way from there open, and renews nothing.
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
    """Wish of a node to decide about a subtree."""

    subtree: str
    incarnation: int
    node: Endpoint
    leave: bool = False
    cookie: bytes = b""


class RejectedRequest(Struct, frozen=True):
    """A question that is not well-formed, in place of its message; it is never encoded."""

    code: Code


Body: TypeAlias = PubConnect | PubAccept | DatagramPublish | PubAck | DatagramSubscribe | Join | RejectedRequest


class Datagram(Struct, frozen=True):
    """One datagram; an answer has the ``request`` of what it answers."""

    request: int
    body: Body


def encode(packet: Datagram) -> bytes:
    """Return the bytes of a packet; who sends bounds them by DATAGRAM_BYTES_MAX."""
    match packet.body:
        case PubAck(code, (), lease_s, receivers, cookie):  # these two are most of all, and a dict costs half
            answer = {"code": code, "lease_s": lease_s, "receivers": receivers, "cookie": cookie}
            return _written(pb.Packet(version=VERSION, request=packet.request, puback=answer))
        case DatagramPublish(topic, payload, qos, number, topic_number, cookie):
            message = {"topic": topic, "payload": payload, "qos": qos, "number": number}
            if topic_number or cookie:
                message |= {"topic_number": topic_number, "cookie": cookie}
            return _written(pb.Packet(version=VERSION, request=packet.request, publish=message))
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
    return _written(out)


def decode(data: bytes, bytes_max: int = DATAGRAM_BYTES_MAX) -> Datagram:
    """Return the message of a datagram.

    Args:
        data: The packet, without what security adds.
        bytes_max: Of a packet.
    Raises:
        Malformed: It is none, or is too long.
    """
    try:
        found = pb.Packet.FromString(data)
    except DecodeError:
        raise _malformed("too long" if len(data) > bytes_max else "not a packet", _question_number(data)) from None
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


def _question_number(data: bytes) -> int:
    """Return the request number of bytes that are no packet, for example with a topic that is not UTF-8.

    0 where the number does not come before the message, as all encoders write it, and of an answer.
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
    """Return the number that begins at a place, and the place behind it; 0 where there is none."""
    value = 0
    for index, byte in enumerate(data[at : at + VARINT_BYTES_MAX]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value & (1 << 64) - 1, at + index + 1
    return 0, len(data)


def _written(packet: Any) -> bytes:
    data: bytes = packet.SerializeToString()
    return data


def _put(message: Any, **values: Any) -> None:
    message.SetInParent()  # a message of nothing but defaults is one all the same
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
    """Of a subtree: the topic above all others in it, "" for all topics."""
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
