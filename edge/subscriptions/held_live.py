"""Live messages of a new subscription, held until its retained ones are sent (ephemeral sessions).

While the retained messages are read, copies for the subscription's topics go to a connection without a socket; at the
end they are read from its output and delivered. All holds of a client share that connection, and a topic's messages are
held while any of its filters is, so that the end of one hold lets nothing overtake what waits for another. What the
retained read found among them is sent once. What a read that lasts too long can hold no longer still goes that way, and
its topics are noted: the read's copies of them are older. Bounded like any ephemeral session; a durable session's live
messages wait in its queue instead. Source: MQTT 5.0 section 3.3.1.3; docs/protocol.md rule 7.4.
"""

from edge.clients.client import Client
from edge.hot.options import ConnOptions, SessionOptions
from edge.hot.state import CLIENT, Inbound
from edge.hot.state import Conn as HotConn
from edge.node.node import NS, EdgeNode
from edge.node.ports import Copies
from edge.subscriptions.ephemeral_sessions import EphemeralSubscriptions
from mqtt.codec import Limits, decode_packet, decode_varint
from mqtt.packets import Publish
from mqtt.properties import PropertyId, encode_properties
from mqtt.topic_trie import TopicTrie
from wire.messages.retained import RetainedMessage
from wire.messages.sessions import Subscription

__all__ = ["HeldMessages", "Hold"]

NO_EXPIRY = 0xFFFFFFFF
ANY_SIZE = Limits(user_properties_bytes_max=1 << 28)  # our own copies: they were checked when they came
PUBACK, PUBREC = 0x40, 0x50
CLIENT_BYTES_MAX = 1024 * 1024  # held for one client; more end the holding
EDGE_BYTES_MAX = 32 * 1024 * 1024  # for all of them; more end it for those that have more than their part of it
MESSAGE_OVERHEAD_BYTES = 1024  # what a decoded message takes besides its bytes, rounded up
TOPICS_MAX = 10_000  # noted for one client; beyond it a late copy of any topic counts as older
REFUSED = 0x80  # in PUBREC: ends the flow of QoS 2 at once [MQTT-4.3.3-9]


class Hold:
    """One SUBSCRIBE's retained reads, and the filters that wait for them."""

    __slots__ = ("client", "deadline", "late", "topic_filters")

    def __init__(self, client: Client, topic_filters: list[str], deadline: float) -> None:
        self.client = client
        self.topic_filters = set(topic_filters)  # without those that were unsubscribed meanwhile
        self.deadline = deadline
        self.late = False  # messages pass; the read is still under way


class Waiting:
    """Messages held for one client, of all its SUBSCRIBEs: one order, so that a topic's messages keep theirs."""

    __slots__ = ("bytes", "conn", "holds", "messages", "passed")

    def __init__(self, conn: HotConn) -> None:
        self.conn = conn  # without a socket: where copies go
        self.holds: list[Hold] = []
        self.messages: list[tuple[float, Publish]] = []  # when, what
        self.bytes = 0  # of them, about
        self.passed: set[str] = set()  # topics of messages that went out before a late read ended

    def add(self, since: float, publish: Publish) -> None:
        """Hold one more."""
        self.messages.append((since, publish))
        self.bytes += len(publish.payload) + len(publish.topic_name) + MESSAGE_OVERHEAD_BYTES

    def wanted_filters(self) -> TopicTrie:
        """Return the filters that still wait for their retained messages."""
        filters = TopicTrie()
        for hold in self.holds:
            for name in hold.topic_filters if not hold.late else ():
                filters.add(name, 0, True)
        return filters


class HeldMessages:
    """The holds of one edge."""

    def __init__(self, node: EdgeNode, loop: Copies, local: EphemeralSubscriptions) -> None:
        self._node = node
        self._loop = loop
        self._local = local
        self._waiting: dict[int, Waiting] = {}  # by client

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self, client: Client, granted: list[Subscription], existed: list[bool]) -> Hold | None:
        """Hold the filters of a SUBSCRIBE, before they are added; None if nothing will be read for them.

        A filter that is subscribed to again too: its retained messages are sent once more [MQTT-3.8.4-3].

        No Local subscriptions are not held: from the copy alone nobody could tell whose message it was.
        """
        filters = [
            subscription.topic_filter
            for subscription, before in zip(granted, existed, strict=True)
            if (subscription.retain_handling == 0 or (subscription.retain_handling == 1 and not before))
            and not subscription.no_local
            and not subscription.topic_filter.startswith(("$share/", "$SYS"))
        ]
        if not filters:
            return None
        node = self._node
        waiting = self._waiting.get(client.number)
        if waiting is None:
            conn = self._loop.attach(-1, CLIENT, ConnOptions(connect_timeout_ns=0), int(node.now * NS))
            self._loop.open_session(conn, SessionOptions(version=5))
            waiting = self._waiting[client.number] = Waiting(conn)
        hold = Hold(client, filters, node.now + node.limits.retained_hold_s)
        waiting.holds.append(hold)
        for name in filters:
            client.holds[name] = waiting.conn
        return hold

    def is_held(self, hold: Hold, message: RetainedMessage) -> bool:
        """Whether a retained message is among the held ones, which are sent, or older than one that has passed."""
        waiting = self._waiting.get(hold.client.number)
        if waiting is None:
            return False
        self._collect(waiting)
        topic = message.topic
        if topic in waiting.passed or len(waiting.passed) > TOPICS_MAX:
            return True
        return any(
            publish.topic_name == topic and publish.payload == message.payload for _, publish in waiting.messages
        )

    def unsubscribed(self, client: Client, names: list[str]) -> None:
        """Filters are gone while their retained messages were read: what was held for them goes out before UNSUBACK."""
        waiting = self._waiting.get(client.number)
        if waiting is None:
            return
        held = [name for name in names if client.holds.pop(name, None) is not None]
        if not held:
            return
        for hold in waiting.holds:
            hold.topic_filters.difference_update(held)
        self._release(client, waiting, [])

    def end(self, hold: Hold) -> None:
        """Deliver what was held and nothing else waits for; from now on the filters' copies go to the client."""
        client = hold.client
        waiting = self._waiting.get(client.number)
        if waiting is None or hold not in waiting.holds:
            return
        waiting.holds.remove(hold)
        for name in hold.topic_filters:
            client.holds.pop(name, None)
        self._release(client, waiting, sorted(hold.topic_filters))

    def _release(self, client: Client, waiting: Waiting, changed: list[str]) -> None:
        self._collect(waiting)
        if not any(hold.topic_filters for hold in waiting.holds):
            waiting.holds.clear()
            del self._waiting[client.number]
            self._loop.close(waiting.conn, linger=False)
        if client.conn.closed:
            return
        for name in changed:
            self._local.released(client, name)
        wanted = waiting.wanted_filters() if waiting.messages and waiting.holds else None
        messages, waiting.messages, waiting.bytes = waiting.messages, [], 0
        for since, publish in messages:
            if wanted is not None and wanted.match(publish.topic_name):
                waiting.add(since, publish)
            else:
                if waiting.holds and len(waiting.passed) <= TOPICS_MAX:
                    waiting.passed.add(publish.topic_name)
                self._deliver(client, publish, self._node.now - since)

    def _collect(self, waiting: Waiting) -> None:
        """Take what came, acknowledging it as its client would, so that more has room."""
        while data := self._loop.take_output(waiting.conn):
            answers = bytearray()
            for first, body in _packets(data):
                publish = decode_packet(first, body, 5, ANY_SIZE)
                if not isinstance(publish, Publish):
                    continue  # PUBREL for a refused PUBREC
                waiting.add(self._node.now, publish)
                if publish.qos == 1:
                    answers += bytes((PUBACK, 2)) + (publish.packet_identifier or 0).to_bytes(2, "big")
                elif publish.qos == 2:
                    answers += (
                        bytes((PUBREC, 3)) + (publish.packet_identifier or 0).to_bytes(2, "big") + bytes((REFUSED,))
                    )
            if not answers:
                return
            self._loop.feed(waiting.conn, bytes(answers))

    def _deliver(self, client: Client, publish: Publish, held_s: float) -> None:
        properties = dict(publish.properties)
        expiry_s = int(properties.pop(PropertyId.MESSAGE_EXPIRY_INTERVAL, NO_EXPIRY))  # type: ignore[call-overload]
        if expiry_s != NO_EXPIRY:
            expiry_s -= int(held_s)
            if expiry_s <= 0:  # [MQTT-3.3.2-5]
                self._node.count("dropped_held_expired")
                return
        block = encode_properties(properties)
        start = next(position for position, byte in enumerate(block) if byte < 0x80) + 1  # behind the length
        inbound = Inbound(
            publish.topic_name.encode(), publish.payload, publish.qos, publish.retain, block[start:], 5, expiry_s
        )
        self._loop.deliver(client.conn, inbound, publish.qos)

    def tick(self, now: float) -> None:
        """Let go what was held for long enough, and what became much; a read that ends later brings nothing older."""
        everyone = list(self._waiting.values())
        for waiting in everyone:
            self._collect(waiting)
        room = CLIENT_BYTES_MAX
        if sum(waiting.bytes for waiting in everyone) > EDGE_BYTES_MAX:
            room = min(room, EDGE_BYTES_MAX // len(everyone))
        for waiting in everyone:
            full = waiting.bytes > room
            for hold in list(waiting.holds):
                if hold.client.conn.closed:
                    self.end(hold)
                elif full or hold.deadline <= now:
                    if not hold.late:
                        self._node.count("holds_cut_full" if full else "holds_cut_time")
                    hold.late = True
            if waiting.messages and any(hold.late for hold in waiting.holds):
                self._release(waiting.holds[0].client, waiting, [])


def _packets(data: bytes) -> list[tuple[int, bytes]]:
    """Split complete packets into (first byte, body)."""
    packets, at = [], 0
    while at < len(data):
        length, body = decode_varint(data, at + 1)
        packets.append((data[at], data[body : body + length]))
        at = body + length
    return packets
