"""Live messages of a new subscription, held until its retained ones are sent (ephemeral sessions).

While the retained messages are read, the subscription's copies go to a connection without a socket; at the end they are
read from its output and delivered. What the retained read found among them is sent once. Bounded like any ephemeral
session; a durable session's live messages wait in its queue instead. Source: MQTT 5.0 section 3.3.1.3; docs/adr/0003.
"""

from typing import TYPE_CHECKING

from edge.client import Client
from edge.hot.options import ConnOptions, SessionOptions
from edge.hot.state import CLIENT, Inbound
from edge.hot.state import Conn as HotConn
from mqtt.codec import Limits, decode_packet
from mqtt.packets import Publish
from mqtt.properties import PropertyId, encode_properties
from wire.messages import RetainedMessage, Subscription

if TYPE_CHECKING:
    from edge.core import EdgeCore

__all__ = ["HeldLive", "Hold"]

NO_EXPIRY = 0xFFFFFFFF
ANY_SIZE = Limits(user_properties_bytes_max=1 << 28)  # our own copies: they were checked when they came
PUBACK, PUBREC = 0x40, 0x50
MESSAGES_MAX = 1_000  # held by one SUBSCRIBE; more end the hold
REFUSED = 0x80  # in PUBREC: ends the flow of QoS 2 at once [MQTT-4.3.3-9]


class Hold:
    """What is held for one SUBSCRIBE."""

    __slots__ = ("client", "conn", "deadline", "messages", "topic_filters")

    def __init__(self, client: Client, conn: HotConn, topic_filters: list[str], deadline: float) -> None:
        self.client = client
        self.conn = conn
        self.topic_filters = topic_filters
        self.deadline = deadline
        self.messages: list[tuple[float, Publish]] = []  # when, what


class HeldLive:
    """The holds of one edge."""

    def __init__(self, edge: "EdgeCore") -> None:
        self._edge = edge
        self._holds: dict[int, Hold] = {}  # by number of the connection without a socket

    def __len__(self) -> int:
        return len(self._holds)

    def begin(self, client: Client, granted: list[Subscription], existed: list[bool]) -> Hold | None:
        """Hold the new filters of a SUBSCRIBE, before they are added; None if nothing will be read for them.

        No Local subscriptions are not held: from the copy alone nobody could tell whose message it was.
        """
        filters = [
            subscription.topic_filter
            for subscription, before in zip(granted, existed, strict=True)
            if not before
            and subscription.retain_handling != 2
            and not subscription.no_local
            and not subscription.topic_filter.startswith(("$share/", "$SYS"))
        ]
        if not filters:
            return None
        edge = self._edge
        conn = edge.hot.attach(-1, CLIENT, ConnOptions(connect_timeout_ns=0), int(edge.now * 1e9))
        edge.hot.open_session(conn, SessionOptions(version=5))
        hold = Hold(client, conn, filters, edge.now + edge.limits.retained_hold_s)
        self._holds[conn.number] = hold
        for name in filters:
            client.holds[name] = conn
        return hold

    def is_held(self, hold: Hold, message: RetainedMessage) -> bool:
        """Whether a retained message is among the held ones: those are sent, it is not sent twice."""
        self._collect(hold)
        topic = message.topic
        return any(publish.topic_name == topic and publish.payload == message.payload for _, publish in hold.messages)

    def end(self, hold: Hold) -> None:
        """Deliver what was held; from now on the filters' copies go to the client."""
        edge, client = self._edge, hold.client
        if self._holds.pop(hold.conn.number, None) is None:
            return
        self._collect(hold)
        for name in hold.topic_filters:
            if client.holds.get(name) is hold.conn:
                del client.holds[name]
        edge.hot.close(hold.conn, linger=False)
        if client.conn.closed:
            return
        for name in hold.topic_filters:
            edge.local_changed(name)
        for since, publish in hold.messages:
            self._deliver(client, publish, edge.now - since)

    def _collect(self, hold: Hold) -> None:
        """Take what came, acknowledging it as its client would, so that more has room."""
        edge = self._edge
        while data := edge.hot.take_output(hold.conn):
            answers = bytearray()
            for first, body in _packets(data):
                publish = decode_packet(first, body, 5, ANY_SIZE)
                if not isinstance(publish, Publish):
                    continue  # PUBREL for a refused PUBREC
                hold.messages.append((edge.now, publish))
                if publish.qos == 1:
                    answers += bytes((PUBACK, 2)) + (publish.packet_identifier or 0).to_bytes(2, "big")
                elif publish.qos == 2:
                    answers += (
                        bytes((PUBREC, 3)) + (publish.packet_identifier or 0).to_bytes(2, "big") + bytes((REFUSED,))
                    )
            if not answers:
                return
            edge.hot.feed(hold.conn, bytes(answers))

    def _deliver(self, client: Client, publish: Publish, held_s: float) -> None:
        properties = dict(publish.properties)
        expiry_s = int(properties.pop(PropertyId.MESSAGE_EXPIRY_INTERVAL, NO_EXPIRY))  # type: ignore[call-overload]
        if expiry_s != NO_EXPIRY:
            expiry_s -= int(held_s)
            if expiry_s <= 0:  # [MQTT-3.3.2-5]
                self._edge.count("dropped_held_expired")
                return
        block = encode_properties(properties)
        start = next(position for position, byte in enumerate(block) if byte < 0x80) + 1  # behind the length
        inbound = Inbound(
            publish.topic_name.encode(), publish.payload, publish.qos, publish.retain, block[start:], 5, expiry_s
        )
        self._edge.hot.deliver(client.conn, inbound, publish.qos)

    def tick(self, now: float) -> None:
        """End what was held for long enough, and what became much."""
        for hold in list(self._holds.values()):
            self._collect(hold)
            full = len(hold.messages) > MESSAGES_MAX
            if full or hold.deadline <= now or hold.client.conn.closed:
                self.end(hold)


def _packets(data: bytes) -> list[tuple[int, bytes]]:
    """Split complete packets into (first byte, body)."""
    packets, at = [], 0
    while at < len(data):
        length = shift = 0
        body = at + 1
        while True:
            length |= (data[body] & 0x7F) << shift
            shift += 7
            body += 1
            if data[body - 1] < 0x80:
                break
        packets.append((data[at], data[body : body + length]))
        at = body + length
    return packets
