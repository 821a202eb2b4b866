"""The loop reads its clock after each receive and before each flush, and reports the fence to the core."""

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.clients.packets import connect, publish, subscribe
from tests.edge.loop.harness import Broker
from tests.edge.loop.test_loop import Edge
from tests.patience import PATIENCE_S

SOON_NS = 200_000_000


def closing(edge: Any) -> list[int]:
    """Make the core cut every client at the fence; return the times of its calls."""
    calls: list[int] = []

    def fence_over(now_ns: int) -> None:
        calls.append(now_ns)
        for conn in list(edge.handler.subscriptions):
            edge.hot.cut(conn)

    edge.handler.fence_over = fence_over
    return calls


def test_fence_is_reported_before_buffered_bytes_are_parsed(hot: Any) -> None:
    """A PUBLISH parked for its route is not fanned out after the fence."""
    broker = Broker(hot)
    subscriber, publisher = broker.subscriber(b"t"), broker.client()
    calls = closing(broker)
    broker.hot.set_fence(broker.now_ns + 5)
    broker.send(publisher, publish(b"t", b"in time"))
    assert broker.take(subscriber) == [publish(b"t", b"in time")] and calls == []
    broker.now_ns += 5
    broker.send(publisher, publish(b"t", b"late"))
    assert calls == [broker.now_ns] and broker.raw(subscriber) == b""


def test_fence_is_reported_once(hot: Any) -> None:
    broker = Broker(hot)
    calls = closing(broker)
    broker.hot.set_fence(broker.now_ns)
    broker.turn()
    broker.now_ns += 10**9
    broker.turn()
    assert len(calls) == 1


class Served:
    """A loop on real sockets with iterations driven by the test, a subscriber of ``t`` and a publisher."""

    def __init__(self, hot: Any) -> None:
        self.edge = Edge(hot, -1)
        self.clock: Callable[[], int] = hot.descriptors.boot_ns
        self.calls = closing(self.edge)
        self.subscriber, self.publisher = self._connected(), self._connected()
        self.subscriber.sendall(subscribe(b"t", 0))
        self._take(self.subscriber, 5)

    def _connected(self) -> socket.socket:
        end = socket.create_connection(("127.0.0.1", self.edge.port))
        end.sendall(connect())
        self._take(end, 4)
        return end

    def _take(self, end: socket.socket, count: int) -> None:
        for _ in range(10_000):
            self.edge.loop.run(0)
            try:
                if len(end.recv(count, socket.MSG_PEEK | socket.MSG_DONTWAIT)) == count:
                    end.recv(count)
                    return
            except BlockingIOError:
                continue
        raise AssertionError("nothing came")

    def pass_the_end(self) -> None:
        """Block in the first iteration until the fence."""
        if not self.calls:
            time.sleep(2 * SOON_NS / 1e9)

    def written(self) -> bytes:
        """Return the bytes that the subscriber received until its connection closed."""
        self.edge.loop.run(0)
        self.subscriber.settimeout(PATIENCE_S)
        data = b""
        while more := self._received():
            data += more
        return data

    def _received(self) -> bytes:
        try:
            return self.subscriber.recv(1000)
        except ConnectionResetError:
            return b""

    def close(self) -> None:
        """Close all sockets."""
        self.edge.loop.close()
        self.edge.listener.close()
        self.subscriber.close()
        self.publisher.close()


@pytest.fixture
def served(hot: Any) -> Iterator[Served]:
    it = Served(hot)
    yield it
    it.close()


def test_the_clock_is_read_after_a_receive(served: Served) -> None:
    """The iteration begins before the fence, and stops before the publisher's bytes are read."""
    handler = served.edge.handler
    packet = handler.packet

    def stops(conn: Any, first_byte: int, body: bytes) -> None:
        packet(conn, first_byte, body)
        served.pass_the_end()

    handler.packet = stops  # type: ignore[method-assign]
    served.subscriber.sendall(subscribe(b"u", 0))
    served.publisher.sendall(publish(b"t", b"late"))
    served.edge.hot.set_fence(served.clock() + SOON_NS)
    served.edge.loop.run(0)
    assert len(served.calls) == 1
    assert b"late" not in served.written()


def test_the_clock_is_read_before_a_flush(served: Served) -> None:
    """The PUBLISH was fanned out before the fence, and the process stops before the write."""
    served.edge.handler.turn_end = lambda now_ns: served.pass_the_end()  # type: ignore[method-assign]  # noqa: ARG005
    served.edge.hot.turn_end_ns = 0
    served.publisher.sendall(publish(b"t", b"late"))
    served.edge.hot.set_fence(served.clock() + SOON_NS)
    served.edge.loop.run(0)
    assert len(served.calls) == 1
    assert b"late" not in served.written()
