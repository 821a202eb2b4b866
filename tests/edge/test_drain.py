"""Drain of an edge: an order holds until the map marks the edge, and for one drain."""

import msgspec
from msgspec import structs

from edge.drain import ORDER_S, REFUSE_AFTER_S, Drain
from mqtt.packets import Disconnect
from mqtt.properties import PropertyId
from tests.edge.edge_harness import Edge, cluster_map
from wire.messages.map_pages import map_pages
from wire.messages.orders import DrainOrder, OrderNode

OTHER = "192.0.2.1:1883"
RATE = 50


class CountedDoors:
    """Fake listeners that count calls."""

    def __init__(self) -> None:
        self.is_open = False

    def open(self) -> None:
        self.is_open = True

    def shut(self) -> None:
        self.is_open = False


class Place:
    """An edge with a drain, and another edge for redirects."""

    def __init__(self) -> None:
        self.edge = Edge()
        self.doors = CountedDoors()
        core = self.edge.core
        self.drain = Drain(core.node, core.clients, self.doors, lambda: None, RATE, lambda: {"e1": 0.1})
        self.drain.open()
        self.client = self.edge.client()
        self._epoch = 1
        self.let(False)

    def let(self, drains: bool) -> None:
        """Apply a map with or without the drain of this edge."""
        self._epoch += 1
        cluster = cluster_map(self._epoch)
        nodes = dict(cluster.nodes)
        nodes["e0"] = structs.replace(nodes["e0"], admin_state="draining" if drains else "")
        nodes["e1"] = structs.replace(nodes["e1"], clients={"plain": OTHER})
        for page in map_pages(structs.replace(cluster, nodes=nodes)):
            self.edge.router(page)
        self.edge.turn()

    def look(self, seconds: float = 0.0) -> None:
        """Advance the time, and run the drain."""
        self.edge.turn(seconds)
        self.drain.look(self.edge.now)
        self.edge.turn()

    def order(self) -> None:
        """Order redirects."""
        subject = msgspec.json.encode(DrainOrder(1_000, redirect=True)).decode()
        told = self.drain.order(OrderNode(1, "client drain", subject))
        assert told.lines[-1] == "rate 1000"

    def emptied(self) -> str | None:
        """Drain the edge; return the redirect of its client, None for none."""
        self.let(True)
        self.look()
        self.look(REFUSE_AFTER_S + 0.1)
        assert not self.doors.is_open
        self.look(0.1)
        (told,) = self.client.read()
        assert isinstance(told, Disconnect) and told.reason_code == 0x9C
        return told.properties.get(PropertyId.SERVER_REFERENCE)  # type: ignore[return-value]


def test_order_holds_until_the_map_marks_the_drain() -> None:
    """A call before that discarded it on busy machines: no redirects, and the configured rate."""
    place = Place()
    place.order()
    for _ in range(3):
        place.look(1.0)
    assert place.emptied() == OTHER


def test_order_holds_for_one_drain() -> None:
    place = Place()
    place.order()
    assert place.emptied() == OTHER
    place.let(False)
    place.look()
    assert place.doors.is_open
    place.client = place.edge.client("next")
    assert place.emptied() is None


def test_order_without_drain_expires() -> None:
    place = Place()
    place.order()
    place.look()
    place.look(ORDER_S + 1.0)
    assert place.emptied() is None
