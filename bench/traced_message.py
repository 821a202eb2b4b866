"""A message of QoS 1 on its way through the nodes, driven by hand: its cost at each node.

Publishing edge -> partition -> edge of a durable subscriber, in one process without sockets, each part by itself. The
edges are loops with the events of ``edge/queries/traces.py``; the partition commits 20 messages in one operation.
"""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from edge.clients.client import Client
from edge.queries.traces import EdgeTraces
from storage.state.settings import PartitionSettings
from tests.clients.packets import ack, publish
from tests.edge.loop.conftest import load
from tests.edge.loop.harness import Broker, Node, stored
from tests.storage.test_tracing import Traced
from wire.messages.batches import (
    PublishMessage,
    Push,
    PushAck,
    decode_pushes,
    encode_message,
    encode_publish_ack,
    encode_push,
    encode_push_ack,
)
from wire.messages.cluster_map import ClusterMap
from wire.messages.frames import FrameKind
from wire.messages.orders import TraceOrder

__all__ = ["parts"]

MESSAGES = 20  # in one iteration
TRACED, OTHER = b"plant/1/t", b"plant/1/u"
SESSION = 5 << 48 | 3
SLOW_US = 1_100  # between two events: a trace that runs faster ends by itself


def parts() -> Iterator[tuple[str, Callable[[bool], int]]]:
    """Yield each node's part: a name, and a function that sends some messages and returns their number."""
    yield "publishing edge", _publishing()
    yield "partition", _partition()
    yield "edge of the subscriber", _receiving()


def _edge(broker: Broker) -> EdgeTraces:
    node: Any = SimpleNamespace(name="edge-0", map=ClusterMap(""), wake=lambda: None)
    nothing: Any = SimpleNamespace(watch=lambda _: None)
    routes: Any = SimpleNamespace(traced=None, cache=SimpleNamespace(look_again=lambda: None))
    clients: Any = SimpleNamespace(lifecycle=nothing, numbers=list)
    traces = EdgeTraces(node, broker.hot, clients, routes, lambda: 0.0)
    _begin(traces.desk, TRACED.decode())
    return traces


def _begin(desk: Any, topic: str) -> None:
    clock = [0]

    def utc_us() -> int:
        clock[0] += SLOW_US
        return clock[0]

    desk.utc_us = utc_us
    desk.begin(TraceOrder("t", "topic", topic, events_max=100_000), 0.0)


def _publishing() -> Callable[[bool], int]:
    broker, store = stored(load("compiled"))
    install = broker.hot.install_route

    def miss(conn: Any, topic: bytes) -> None:
        route = broker.modules.state.Route(topic, partitions=(5,))
        route.traced = topic == TRACED
        install(topic, route)
        broker.hot.resume(conn)

    broker.handler.miss = miss  # type: ignore[method-assign]
    _edge(broker)
    publisher = broker.client()
    _name(publisher, "sensor")
    frames = {topic: [publish(topic, bytes(64), 1, 1 + n) for n in range(MESSAGES)] for topic in (TRACED, OTHER)}

    def run(traced: bool) -> int:
        broker.send(publisher, b"".join(frames[TRACED if traced else OTHER]))
        tags = [record.tag for record in store.records()]
        store.send(FrameKind.PUBLISH_ACK, b"".join(encode_publish_ack(tag, 5, 0) for tag in tags))
        broker.raw(publisher)
        return len(tags)

    return run


def _partition() -> Callable[[bool], int]:
    scene = Traced("compiled", "topic", "b/d", PartitionSettings())
    scene.tracing.desk.stop("t", 0.0)
    _begin(scene.tracing.desk, "b/d")

    def run(traced: bool) -> int:
        frame = []
        for _ in range(MESSAGES):
            scene.tag += 1
            message = PublishMessage(scene.tag, b"b/d", bytes(64), 1, origin_a=7, origin_b=scene.tag)
            message.partitions, message.epochs, message.traced = (5,), (4,), traced
            frame.append(encode_message(message))
        scene.publish(b"".join(frame))
        pushes = decode_pushes(b"".join(data for _, kind, data in _commit(scene) if kind == FrameKind.PUSH))
        acks = [encode_push_ack(PushAck(push.session, 9, 4, push.session_seq, 4, 0)) for push in pushes]
        scene.acknowledge(b"".join(acks))
        return len(acks)

    return run


def _commit(scene: Any) -> list[tuple[str, int, bytes]]:
    scene.store.write(scene.partition.close_operation())
    scene.partition.note_synced("", scene.partition.meta.op_index)
    out: list[tuple[str, int, bytes]] = scene.partition.committed_outputs()
    return out


def _receiving() -> Callable[[bool], int]:
    broker = Broker(load("compiled"))
    store = Node(broker, 3, "storage")
    broker.hot.set_primary(5, store.peer)
    conn = broker.attach()
    broker.hot.open_session(conn, broker.modules.options.SessionOptions(4, session=SESSION, owner_epoch=9))
    broker.hot.set_primary_of(conn, store.peer)
    _edge(broker)
    _name(conn, "dev1")
    at = [0]

    def run(traced: bool) -> int:
        first = at[0] + 1
        at[0] += MESSAGES
        pushes = [
            encode_push(Push(SESSION, 9, 1, seq, 1 + seq % 60_000, 1, TRACED, bytes(64), traced=traced))
            for seq in range(first, first + MESSAGES)
        ]
        store.send(FrameKind.PUSH, b"".join(pushes))
        broker.raw(conn)
        broker.send(conn, b"".join(ack(0x40, 1 + seq % 60_000) for seq in range(first, first + MESSAGES)))
        store.take()
        return MESSAGES

    return run


def _name(conn: Any, name: str) -> None:
    policy: Any = None
    conn.context = Client(conn, policy, client_id=name)
