"""A broker loop without sockets, with the toy handler, and clients that are byte strings."""

from typing import Any

from bench.toy_broker import ToyHandler
from tests.clients.packets import connect, split, subscribe
from wire.links.link import LinkCore
from wire.messages.batches import decode_publish
from wire.messages.frames import HEADER, PROTOCOL_VERSION, FrameKind

FOREVER = 1 << 60


class Broker:
    """One edge: the broker loop and the toy handler, driven by the test."""

    def __init__(self, hot: Any, incarnation: int = 7, **limits: Any) -> None:
        self.modules = hot
        self.handler = ToyHandler(hot)
        self.now_ns = 1_000_000_000
        self.hot = hot.broker_loop.BrokerLoop(self.handler, incarnation, hot.options.HotLimits(**limits))
        self.handler.hot = self.hot
        self.hot.set_lease(FOREVER)
        self.hot.begin_turn(self.now_ns)

    def route_to(self, **destinations: Any) -> None:
        """Add these destinations to every topic's Route."""

        def extra(topic: bytes) -> dict[str, Any]:
            del topic
            return destinations

        self.handler.extra_route = extra

    def attach(self, kind: int = 0, **options: Any) -> Any:
        return self.hot.attach(-1, kind, self.modules.options.ConnOptions(**options), self.now_ns)

    def client(self, version: int = 4, properties: bytes = b"", **options: Any) -> Any:
        conn = self.attach(**options)
        self.send(conn, connect(b"c", version, properties))
        assert self.take(conn)[0][0] == 0x20
        return conn

    def subscriber(self, topic_filter: bytes, options: int = 0, version: int = 4, identifier: int = 0) -> Any:
        conn = self.client(version)
        self.send(conn, subscribe(topic_filter, options, version, identifier))
        assert self.take(conn)[0][0] == 0x90
        return conn

    def turn(self) -> None:
        self.hot.begin_turn(self.now_ns)
        self.hot.end_turn(self.now_ns)

    def send(self, conn: Any, data: bytes) -> None:
        self.hot.begin_turn(self.now_ns)
        self.hot.feed(conn, data)
        self.hot.end_turn(self.now_ns)

    def raw(self, conn: Any) -> bytes:
        out: bytes = self.hot.take_output(conn)
        return out

    def take(self, conn: Any) -> list[bytes]:
        return split(self.raw(conn))


def hello(payload: bytes = b"hello") -> bytes:
    return HEADER.pack(len(payload), 0, 0, PROTOCOL_VERSION, 0) + payload


class Node:
    """Another node at the end of a link: its LinkCore, and the link's connection in our loop."""

    def __init__(self, broker: Broker, node: int, tier: str, connect: bool = True) -> None:
        self.broker = broker
        self.link = LinkCore()
        self.link.connected(0)
        self.peer = broker.hot.add_peer(node, tier, 1)
        self.conn: Any = None
        self.received: list[tuple[int, bytes]] = []
        if connect:
            self.connect()

    def connect(self) -> None:
        self.conn = self.broker.attach(1)
        hot = self.broker.hot

        def welcome(conn: Any, payload: bytes) -> None:
            assert payload == b"hello"
            hot.bind_link(conn, self.peer, self.link.taken)

        self.broker.handler.hello = welcome  # type: ignore[method-assign]
        self.broker.send(self.conn, hello())

    def take(self) -> list[tuple[int, bytes]]:
        """Return our node's frames without acknowledging them; (kind, payload) each."""
        frames = [(f.kind, f.payload) for f in self.link.receive(self.broker.raw(self.conn))]
        self.received += frames
        return frames

    def records(self) -> list[Any]:
        """Return the records of PUBLISH among our node's frames."""
        return [r for kind, payload in self.take() if kind == FrameKind.PUBLISH for r in decode_publish(payload)]

    def tell(self) -> None:
        """Send TAKEN and queued bytes to our node."""
        self.broker.send(self.conn, self.link.take_output())

    def send(self, kind: int, payload: bytes) -> None:
        self.link.send(kind, payload)
        self.tell()


def forwarded(hot: Any) -> tuple[Broker, Node]:
    """Return a loop, and the edge that receives every topic."""
    broker = Broker(hot)
    edge = Node(broker, 2, "edge")
    broker.route_to(edges=(edge.peer,))
    return broker, edge


def stored(hot: Any) -> tuple[Broker, Node]:
    """Return a loop, and the storage node with partition 5, which receives every topic."""
    broker = Broker(hot)
    store = Node(broker, 3, "storage")
    broker.hot.set_primary(5, store.peer)
    broker.route_to(partitions=(5,))
    return broker, store
