"""Fuzz targets of the compiled decoder: bytes from a client or another node to the edge's loop.

``HotSession`` feeds one input to a small broker of one form of the modules and returns all output; every input
gets its own connection. The broker is replaced after ``INPUTS_MAX`` inputs, so at most that many reproduce a
failure. ``check_client`` and ``check_link`` check the compiled form by itself (address sanitizer,
Cython's bounds checks, exceptions, broken output), ``check_both`` compares it with the same files uncompiled.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from mqtt.codec import Limits, StreamDecoder
from tests.clients.packets import ack, connect, publish
from tests.edge.loop.conftest import load
from tests.edge.loop.harness import Broker, Node
from tests.mqtt.test_vectors import ALL
from wire.messages.batches import PublishMessage, PublishRun, Push, encode_message, encode_push, encode_run

INPUTS_MAX = 64  # per broker
SECOND_NS = 1_000_000_000
READ_EVERY = 4  # outputs of the subscribers are decoded, which is slow, for every so many inputs
VERSIONS = (0, 4, 5, 3)  # 0: CONNECT comes first, from the input
LIMITS = Limits(maximum_packet_size=2_000_000, first_packet_bytes_max=2_000_000)

__all__ = ["CLIENT_CORPUS", "LINK_CORPUS", "HotSession", "check_both", "check_client", "check_link"]


class HotSession:
    """A broker with two subscribers, of one form of the modules."""

    def __init__(self, modules: Any) -> None:
        self._modules = modules
        self._seen: list[bytes] = []
        self.renew()

    @property
    def seen(self) -> list[bytes]:
        """The inputs of this broker's life, the last one included."""
        return self._seen

    def renew(self) -> None:
        self._seen = []
        self.broker = Broker(
            self._modules,
            output_high_bytes=50_000,
            output_low_bytes=10_000,
            pending_messages_max=20,
            received_max=32,
            routes_max=64,
            receive_excess_messages_max=4,
            receive_excess_bytes_max=64,
        )
        # The edge's core handles packets that the loop does not.
        handler = self.broker.handler
        handler.frame = _nothing  # type: ignore[assignment, method-assign]

        def picked(_peer: Any, share: bytes, topic: bytes, _qos: int) -> Any:
            return next(iter(handler.local(topic).subs), None) if len(share) % 2 else None

        handler.picked = picked  # type: ignore[assignment, method-assign]
        self._elsewhere = self.broker.hot.add_peer(9, "edge", 1)  # receives no frames: its link is down
        subscriber = self.broker.subscriber
        self._subscribers = [subscriber(b"#", 1, 5, 1), subscriber(b"t/+", 2, 4), subscriber(b"#", 1, 5)]
        self._late = self._subscribers[2]  # gets its copies behind each input
        handler.held[self._late] = []
        self._decoders = [StreamDecoder(5, LIMITS), StreamDecoder(4, LIMITS), StreamDecoder(5, LIMITS)]

    def client(self, data: bytes) -> list[Any]:
        """One client: the first byte selects version, pieces and quota, the second the earlier deliveries."""
        if len(self._seen) >= INPUTS_MAX:
            self.renew()
        self._seen.append(data)
        broker, choice = self.broker, data[0] if data else 0
        conn = broker.attach()
        version = VERSIONS[choice & 3]
        if version:
            self._open(conn, version, data[1] if len(data) > 1 else 0, choice >> 5)
        at, step = 2, (1 << 20, 1, 7, 60)[choice >> 2 & 3]
        while at < len(data) and not conn.closed and not conn.parked:
            broker.hot.begin_turn(broker.now_ns)
            broker.hot.feed(conn, data[at : at + step])
            broker.hot.end_turn(broker.now_ns)
            at += step
        effects = self._hear(conn)
        if choice & 0x20:
            for later_ns in (1, 11 * SECOND_NS):  # above Receive Maximum its own PUBRELs may be missing
                broker.hot.sweep(broker.now_ns + later_ns)
            effects += self._hear(conn)
        self._forget(conn)
        return effects

    def _open(self, conn: Any, version: int, choice: int, quota: int) -> None:
        """Accept the client; with some choices it is also a subscriber with messages in flight to it.

        quota: 1: Receive Maximum is 2; 2: and the session is a new one; 4: its publishes wait for another edge.
        """
        broker = self.broker
        if quota & 4:
            broker.route_to(edges=(self._elsewhere,))
            broker.hot.drop_routes()
        else:
            broker.route_to()
        options = self._modules.options.SessionOptions(
            version=version,
            receive_maximum=choice & 7 or 65_535,
            topic_alias_maximum=choice >> 3 & 3,
            announced_receive_maximum=2 if quota & 1 else 20,
            fresh=bool(quota & 2),
        )
        broker.hot.open_session(conn, options)
        if choice & 0x80:
            broker.handler.subscriptions[conn] = {b"t": (choice >> 5 & 3 if choice >> 5 & 3 != 3 else 1, 0, 0)}
            broker.hot.drop_routes()

    def _hear(self, conn: Any) -> list[Any]:
        broker = self.broker
        self._give_back()
        effects: list[Any] = [conn.closed, conn.parked, broker.raw(conn)]
        for number, subscriber in enumerate(self._subscribers):
            output = broker.raw(subscriber)
            effects.append(output)
            if len(self._seen) % READ_EVERY == 0 or self._decoders[number] is None:
                # For any input, output to other clients is well-formed MQTT.
                decoder = StreamDecoder((5, 4, 5)[number], LIMITS)
                packets = decoder.feed(output)
                assert decoder.error is None, (output.hex(), decoder.error)
                assert not len(decoder), output.hex()
                for packet in packets:
                    identifier = getattr(packet, "packet_identifier", None)
                    if identifier:
                        self._acknowledge(number, identifier)
        return effects

    def _give_back(self) -> None:
        """Deliver the copies that were held."""
        held = self.broker.handler.held
        copies, held[self._late] = held[self._late], []
        for sub, record in copies:
            self.broker.hot.deliver_held(sub, record, len(copies))

    def _acknowledge(self, number: int, identifier: int) -> None:
        subscriber = self._subscribers[number]
        if subscriber.closed or subscriber.parked:
            return
        self.broker.send(subscriber, ack((0x40, 0x70, 0x40)[number], identifier))

    def _forget(self, conn: Any) -> None:
        hot, now_ns = self.broker.hot, self.broker.now_ns
        hot.begin_turn(now_ns)
        hot.end_of_file(conn)
        if not conn.closed:  # input behind a parked packet is parsed first; here no answer arrives
            hot.close(conn, b"", False)
        hot.end_turn(now_ns)
        hot.dirty_conns()
        self.broker.handler.subscriptions.pop(conn, None)

    def link(self, data: bytes) -> list[Any]:
        """One frame of another node after its HELLO, or with 0x80 in the first byte its bytes as they are."""
        if len(self._seen) >= INPUTS_MAX:
            self.renew()
        self._seen.append(data)
        broker = self.broker
        number = len(self._seen) + 10
        node = Node(broker, number, ("edge", "storage")[number & 1])
        kind = data[0] if data else 0
        if kind & 0x80:
            broker.send(node.conn, data[1:])
        else:
            node.send((4, 5, 6, 7)[kind % 4], data[1:])
        effects: list[Any] = [node.conn.closed]
        if kind & 0x80:
            effects.append(broker.raw(node.conn))  # may acknowledge frames that our end of the link never sent
        elif not node.conn.closed:
            effects += node.take()
        self._give_back()
        for subscriber in self._subscribers:
            effects.append(broker.raw(subscriber))
        broker.hot.retire_peer(node.peer)
        self._forget(node.conn)
        return effects


def _nothing(*_: object) -> None: ...


_SESSIONS: dict[tuple[str, str], HotSession] = {}


def _session(form: str, use: str) -> HotSession:
    if (form, use) not in _SESSIONS:
        modules = load(form)
        if form == "compiled" and not modules.compiled:
            raise RuntimeError("edge.loop is not compiled: run `make setup`")
        _SESSIONS[form, use] = HotSession(modules)
    return _SESSIONS[form, use]


def _told(session: HotSession, check: Callable[[bytes], list[Any]], data: bytes) -> list[Any]:
    try:
        return check(data)
    except Exception as error:
        error.add_note("inputs of this broker: " + " ".join(seen.hex() or "-" for seen in session.seen))
        raise


def check_client(data: bytes) -> None:
    """A client's bytes, in the compiled form."""
    session = _session("compiled", "client")
    _told(session, session.client, data)


def check_link(data: bytes) -> None:
    """Another node's bytes, in the compiled form."""
    session = _session("compiled", "link")
    _told(session, session.link, data)


def check_both(data: bytes) -> None:
    """A client's bytes (first bit of the first byte: another node's) in both forms."""
    compiled, pure = _session("compiled", "both"), _session("pure", "both")
    link = bool(data) and bool(data[0] & 0x10)
    results = [_told(s, s.link if link else s.client, data) for s in (compiled, pure)]
    if results[0] != results[1]:
        seen = " ".join(entry.hex() or "-" for entry in compiled.seen)
        for session in (compiled, pure):
            session.renew()
        raise AssertionError(f"compiled {results[0]}, uncompiled {results[1]}; inputs of this broker: {seen}")


def _corpus() -> tuple[bytes, ...]:
    found = []
    for vector in ALL:
        found.append(bytes((0, 0)) + vector.raw)
        for choice in (1, 2):
            found.append(bytes((choice, 0x80)) + vector.raw)
    backlog = b"".join(publish(b"t", b"m" * 9, qos, 2 * number + qos, 5) for number in range(6) for qos in (1, 2))
    found += [bytes((2 | quota << 5, 0)) + backlog + ack(0x62, 2) + ack(0x62, 4) for quota in (1, 3, 5, 7)]
    for version, choice in ((4, 1), (5, 2)):  # a QoS 2 PUBLISH that is repeated before, and behind, PUBREL
        again = publish(b"t", b"m", 2, 3, version)
        repeats = again + b"".join(bytes((again[0] | 0x08,)) + again[1:] for _ in range(4))
        found += [bytes((choice, 0)) + repeats + ack(0x62, 3) * 2 + again, bytes((choice | 0x20, 0)) + repeats]
    for version, choice in ((4, 1), (5, 2)):
        begin = bytes((choice, 0xA0 | version))
        many = publish(b"t", b"x" * 9, 0, 0, version) * 3 + publish(b"t/u", b"y", 2, 7, version) + ack(0x62, 7)
        found += [begin + many, begin + publish(b"t", b"m", 1, 1, version) + ack(0x40, 1) + b"\xc0\x00"]
        found.append(bytes((0, 0)) + connect(b"c", version) + many)
        alias = publish(b"t", b"m", 0, 0, 5, b"\x23\x00\x03") + publish(b"", b"m", 0, 0, 5, b"\x23\x00\x03")
        found.append(begin + (alias if version == 5 else publish(b"t", b"z" * 300)))
    return tuple(found)


def _links() -> tuple[bytes, ...]:
    run = b"".join(publish(b"t", b"m" * 5, version=5) for _ in range(3))
    message = encode_message(PublishMessage(3, b"t/a", b"m", 1, partitions=(1, 2), properties=b"\x02\0\0\0\x05"))
    pick = encode_message(PublishMessage(4, b"t/a", b"m", 1, origin_b=9, share=b"g/t/a"))
    push = encode_push(Push(50, 6, 1, 3, 4, 2, b"t", b"m"))
    return (
        b"\0" + encode_run(PublishRun(5, b"t", run)) + message,
        b"\0" + message,
        b"\0" + pick + message,
        b"\2" + push,
        b"\1" + struct.pack(">QQ", 1, 2),
        b"\3" + struct.pack(">QQQ", 1, 2, 3),
        b"\x80" + struct.pack(">IBBHQ", 4, 4, 0, 1, 1) + b"abcd",
    )


CLIENT_CORPUS = _corpus()
LINK_CORPUS = _links()
