"""An edge with timed iterations: processor time of this thread, independent of the machine's load."""

import time
from collections.abc import Callable, Iterable
from typing import Any

from edge.node.limits import EdgeLimits
from mqtt.codec import encode_packet
from mqtt.packets import Publish, Subscribe, SubscriptionRequest, Unsubscribe
from tests.edge.edge_harness import Edge, Session
from wire.messages.control import Control
from wire.messages.routes import Destinations, Resolved, RoutesAdded

__all__ = ["TimedEdge", "subscribe"]


class TimedEdge(Edge):
    """Iterations of its loop without sockets; responses of other nodes are not measured."""

    def __init__(self, limits: EdgeLimits | None = None, **hot_limits: Any) -> None:
        self.turns_s: list[float] = []
        super().__init__(limits, **hot_limits)

    def step(self, *work: Callable[[], object]) -> None:
        """Run one iteration with this input."""
        self.now += 0.001
        hot = self.core.hot
        began = time.thread_time()
        hot.begin_turn(self.ns)
        for each in work:
            each()
        hot.end_turn(self.ns)
        self.turns_s.append(time.thread_time() - began)

    def settle(self, turns_max: int = 20_000) -> int:
        """Run iterations until the edge is idle; return their number."""
        for count in range(turns_max):
            answers = [item for item in self.core.told if type(item[1]) not in self.held]
            self.core.told = [item for item in self.core.told if type(item[1]) in self.held]
            replies = [reply for _, message in answers if (reply := self.reply(message)) is not None]
            self.step(*(self._taker(reply) for reply in replies))
            if not (replies or self.core.busy or self.core.hot.wants_turn() or self.core.told):
                return count
        raise AssertionError(f"still at work after {turns_max} turns")

    def settle_alone(self) -> None:
        """Run iterations until this edge is idle, without responses."""
        for _ in range(20_000):
            self.step()
            if not (self.core.busy or self.core.hot.wants_turn()):
                return
        raise AssertionError("still at work")

    def _taker(self, reply: Control) -> Callable[[], None]:
        router = isinstance(reply, Resolved | RoutesAdded)
        return lambda: (self.router if router else self.storage)(reply)

    def feed(self, session: Session, packet: Publish | Subscribe | Unsubscribe) -> Callable[[], None]:
        """Return a callable that feeds a packet."""
        data = encode_packet(packet, session.version)
        return lambda: self.core.hot.feed(session.client.conn, data)

    def cache(self, topics: Iterable[str], destinations: Destinations | None = None) -> None:
        """Fill the route cache."""
        names = list(topics)
        if destinations is not None:
            self.routes.update(dict.fromkeys(names, destinations))
        self.need(names)
        self.settle()

    def need(self, topics: Iterable[str], then: Callable[[object], None] = lambda _: None) -> None:
        """Make publishers miss topics."""
        for topic in topics:
            self.core.cache.need(topic, then)
        self.core.hot.turn_end_ns = 0  # as in each call of the loop

    def worst_ms(self) -> float:
        """Return the longest iteration since the last call."""
        turns, self.turns_s = self.turns_s, []
        return max(turns, default=0.0) * 1000


def subscribe(filters: list[str], identifier: int = 1) -> Subscribe:
    """Return one SUBSCRIBE of QoS 0."""
    return Subscribe(identifier, [SubscriptionRequest(name, 0) for name in filters], {})
