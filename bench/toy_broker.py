"""An in-process Handler with just enough of an edge core to measure and test the hot loop alone.

All state is ephemeral and local; CONNECT is always accepted, filters are matched one by one. For benchmarks and tests.
"""

import struct
from collections.abc import Callable
from typing import Any

from mqtt.codec import decode_varint
from mqtt.errors import MalformedPacket
from wire.messages.frames import HEADER

__all__ = ["ToyHandler", "matches"]


def matches(topic_filter: bytes, topic: bytes) -> bool:
    """Whether a filter matches a topic name (MQTT 5.0 section 4.7)."""
    if topic_filter[:1] in b"+#" and topic[:1] == b"$":
        return False
    wanted, levels = topic_filter.split(b"/"), topic.split(b"/")
    for index, level in enumerate(wanted):
        if level == b"#":
            return True
        if index >= len(levels) or (level != b"+" and level != levels[index]):
            return False
    return len(wanted) == len(levels)


def _text(data: bytes, at: int) -> tuple[bytes, int]:
    (length,) = struct.unpack_from(">H", data, at)
    return data[at + 2 : at + 2 + length], at + 2 + length


class ToyHandler:
    """Sessions of one edge without cluster: see ``edge/loop/handler.py`` for the contract."""

    def __init__(self, modules: Any) -> None:
        self.modules = modules
        self.hot: Any = None
        self.subscriptions: dict[Any, dict[bytes, tuple[int, int, int]]] = {}
        self.peer: Any = None
        self.errors: list[tuple[Any, int]] = []
        self.violations: list[tuple[str, str]] = []
        self.ended: list[tuple[Any, int]] = []
        self.inbounds: list[Any] = []
        self.misses: list[bytes] = []
        self.prefetched: list[bytes] = []
        self.held: dict[Any, list[tuple[Any, bytes]]] = {}  # copies of each subscriber that has to wait
        self.session_options: dict[str, Any] = {}
        self.attach: Callable[[Any, int], Any] | None = None
        self.extra_route: Callable[[bytes], dict[str, Any]] | None = None

    # -- packets

    def packet(self, conn: Any, first_byte: int, body: bytes) -> None:
        handle = {1: self._connect, 8: self._subscribe, 10: self._unsubscribe}.get(first_byte >> 4)
        try:
            if handle is None or (conn not in self.subscriptions) != (first_byte >> 4 == 1):
                raise ValueError("DISCONNECT, or what no client may send here")
            handle(conn, body)
        except (MalformedPacket, ValueError, IndexError, KeyError, struct.error):
            self.hot.close(conn)
        else:
            self.hot.resume(conn)

    def _connect(self, conn: Any, body: bytes) -> None:
        _, at = _text(body, 0)
        version = body[at]
        keep_alive = struct.unpack_from(">H", body, at + 2)[0]
        at += 4
        limits = {"receive_maximum": 65_535, "maximum_packet_size": 0}
        if version == 5:
            length, at = decode_varint(body, at)
            end = at + length
            while at < end:
                what = body[at]
                if what == 0x21:
                    limits["receive_maximum"] = struct.unpack_from(">H", body, at + 1)[0]
                elif what == 0x27:
                    limits["maximum_packet_size"] = struct.unpack_from(">I", body, at + 1)[0]
                at += {0x11: 5, 0x21: 3, 0x22: 3, 0x27: 5, 0x17: 2, 0x19: 2}[what]
        options = self.modules.options.SessionOptions(
            version=version, keep_alive_ns=keep_alive * 1_000_000_000, **{**limits, **self.session_options}
        )
        self.hot.open_session(conn, options)
        self.subscriptions[conn] = {}
        if version == 5:
            properties = b"\x21" + struct.pack(">H", options.announced_receive_maximum)
            properties += b"\x22" + struct.pack(">H", options.announced_topic_alias_maximum)
            body = b"\x00\x00" + bytes([len(properties)]) + properties
        else:
            body = b"\x00\x00"
        self.hot.write(conn, bytes([0x20, len(body)]) + body, needs_lease=True)

    def _subscribe(self, conn: Any, body: bytes) -> None:
        identifier, at, subscription = body[:2], 2, 0
        if conn.version == 5:
            length, at = decode_varint(body, at)
            if length and body[at] == 0x0B:
                subscription, _ = decode_varint(body, at + 1)
            at += length
        codes = b""
        while at < len(body):
            topic_filter, at = _text(body, at)
            options = body[at]
            at += 1
            self.subscriptions[conn][topic_filter] = (options & 3, options, subscription)
            codes += bytes([options & 3])
        self.hot.drop_routes()
        answer = identifier + (b"\x00" if conn.version == 5 else b"") + codes
        self.hot.write(conn, bytes([0x90, len(answer)]) + answer, needs_lease=True)

    def _unsubscribe(self, conn: Any, body: bytes) -> None:
        identifier, at, codes = body[:2], 2, b""
        if conn.version == 5:
            length, at = decode_varint(body, at)
            at += length
        while at < len(body):
            topic_filter, at = _text(body, at)
            self.subscriptions[conn].pop(topic_filter, None)
            codes += b"\x00"
        self.hot.drop_routes()
        answer = identifier + (b"\x00" + codes if conn.version == 5 else b"")
        self.hot.write(conn, bytes([0xB0, len(answer)]) + answer, needs_lease=True)

    # -- routes

    def subscribers(self, topic: bytes) -> tuple[Any, ...]:
        """This broker's Subs for a topic, merged per connection."""
        subs = []
        for conn, filters in self.subscriptions.items():
            found = [value for topic_filter, value in filters.items() if matches(topic_filter, topic)]
            if found:
                identifiers = b"".join(b"\x0b" + bytes([value[2]]) for value in found if value[2])
                subs.append(
                    self.modules.state.Sub(
                        conn,
                        max(value[0] for value in found),
                        all(value[1] & 4 for value in found),
                        any(value[1] & 8 for value in found),
                        identifiers,
                        conn in self.held,
                    )
                )
        return tuple(sorted(subs, key=lambda sub: (sub.conn.version == 5, sub.identifiers)))

    def miss(self, conn: Any, topic: bytes) -> None:
        self.misses.append(topic)
        extra = self.extra_route(topic) if self.extra_route is not None else {}
        self.hot.install_route(topic, self.modules.state.Route(topic, self.subscribers(topic), **extra))
        self.hot.resume(conn)

    def prefetch(self, conn: Any, topics: list[bytes]) -> int:
        del conn
        self.prefetched += topics
        return len(topics)

    def refresh(self, route: Any) -> Any:
        self.hot.keep_route(route)
        return route

    def local(self, topic: bytes) -> Any:
        return self.modules.state.Route(topic, self.subscribers(topic))

    def hold(self, sub: Any, topic: bytes, record: bytes) -> int:
        del topic
        if sub.conn not in self.held:
            return 0
        self.held[sub.conn].append((sub, record))
        return 1

    # -- the rest of the contract

    def inbound(self, conn: Any, publish: Any, route: Any) -> None:
        self.inbounds.append(publish)
        self.hot.publish(route, publish)
        self.hot.resume(conn)

    def sent(self, conn: Any, octets: int) -> None:
        raise AssertionError((conn, octets))

    def has_room(self, conn: Any) -> None:
        """No producer waits for buffer space."""

    def memory_exceeded(self) -> None:
        pass

    def pubrel(self, conn: Any, packet_identifier: int, reason_code: int) -> None:
        del reason_code
        self.hot.released(conn, packet_identifier, 0)

    def fenced(self, conn: Any) -> None:
        del conn

    def error(self, conn: Any, reason_code: int) -> None:
        self.errors.append((conn, reason_code))
        self.hot.close(conn, bytes([0xE0, 1, reason_code]) if conn.version == 5 else b"")

    def closed(self, conn: Any, why: int) -> None:
        self.ended.append((conn, why))
        if self.subscriptions.pop(conn, None):
            self.hot.drop_routes()

    def accepted(self, listener: object, fd: int, address: str, port: int) -> None:
        del address, port
        assert self.attach is not None
        self.attach(listener, fd)

    def hello(self, conn: Any, payload: bytes) -> None:
        """Two toys, linked: the one that was called answers with its own HELLO; all else goes to the other edge."""
        if self.peer is None:
            self.peer = self.hot.add_peer(2, "edge", 1)
        if payload == b"call":
            self.hot.write(conn, HEADER.pack(6, 0, 0, 1, 0) + b"answer")
        self.hot.bind_link(conn, self.peer, 0)
        self.extra_route = self._other_edge

    def call(self, conn: Any) -> None:
        """Begin a link on a connection that we opened."""
        self.hot.write(conn, HEADER.pack(4, 0, 0, 1, 0) + b"call")

    def _other_edge(self, topic: bytes) -> dict[str, Any]:
        return {} if self.subscribers(topic) else {"edges": (self.peer,)}

    def frame(self, peer: Any, kind: int, payload: bytes) -> None:
        raise NotImplementedError

    def secured(self, conn: Any) -> None:
        """No certificates here."""

    def broke(self, peer: Any, why: str) -> None:
        """The connection ends, that is all."""

    def violated(self, peer: Any, what: str, reason: str) -> None:
        del peer
        self.violations.append((what, reason))

    def link_lost(self, peer: Any) -> None:
        del peer

    def pick(self, group: Any, route: Any, conn: Any, topic: bytes, qos: int) -> Any:
        raise NotImplementedError

    def picked(self, peer: Any, share: bytes, topic: bytes, qos: int) -> Any:
        raise NotImplementedError

    def refused(self, message: Any, remote: Any, reason_code: int) -> Any:
        raise NotImplementedError

    def authorize(self, conn: Any, topic: bytes, retain: bool) -> int:
        del conn, topic, retain
        return 0x7F  # all actions, as for its class

    def may_receive(self, conn: Any, topic: bytes, qos: int) -> bool:
        del conn, topic, qos
        return True

    def given_up(self, share: bytes, record: bytes, since_ns: int) -> None:
        raise NotImplementedError

    def fence_over(self, now_ns: int) -> None:
        del now_ns

    def turn_end(self, now_ns: int) -> None:
        del now_ns
