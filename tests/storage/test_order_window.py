"""Orders of a partition to an edge: bounds of orders in flight, and retries."""

from storage.state.order_window import OrderBounds, OrderWindow


class Edges:
    """The live edges, and the orders sent to each."""

    def __init__(self, bounds: OrderBounds) -> None:
        self.alive = ["e1", "e2"]
        self.sent: list[tuple[int, str]] = []
        self.expired: set[int] = set()
        self.window = OrderWindow(bounds, lambda: self.alive[0] if self.alive else "", self.send)

    def send(self, number: int, edge: str) -> bool:
        if number in self.expired:
            self.window.finish(number)
            return False
        self.sent.append((number, edge))
        return True

    def take(self) -> list[tuple[int, str]]:
        sent, self.sent = self.sent, []
        return sent


def begun(orders: int = 4, octets: int = 1_000, span: int = 6, count: int = 20, size: int = 1) -> Edges:
    edges = Edges(OrderBounds(orders, octets, span))
    for number in range(1, count + 1):
        edges.window.add(number, size)
    edges.window.begin()
    return edges


def test_order_window_bounds_number_bytes_and_span() -> None:
    assert [number for number, _ in begun().take()] == [1, 2, 3, 4]
    assert [number for number, _ in begun(octets=5, size=3).take()] == [1, 2]
    edges = begun()
    for number in (2, 3, 4):
        edges.window.finish(number)
        edges.window.send_some()
    assert [number for number, _ in edges.take()] == [1, 2, 3, 4, 5, 6]  # 7 would be 6 above 1
    edges.window.finish(1)
    edges.window.send_some()
    assert [number for number, _ in edges.take()] == [7, 8]


def test_order_window_sends_restored_orders_by_number() -> None:
    edges = Edges(OrderBounds(2, 1_000, 6))
    for number in (9, 3, 7):
        edges.window.restore(number, 1)
    edges.window.add(10, 1)  # fires before this node serves
    assert edges.take() == []
    edges.window.begin()
    assert edges.take() == [(3, "e1"), (7, "e1")]


def test_order_is_sent_again_only_after_loss_or_refusal() -> None:
    edges = begun(count=3)
    edges.take()
    edges.window.send_some()
    edges.window.frames_lost("e2")
    assert edges.take() == []
    edges.window.frames_lost("e1")
    assert edges.take() == [(1, "e1"), (2, "e1"), (3, "e1")]
    edges.window.send_again(2)
    assert edges.take() == [(2, "e1")]
    edges.window.finish(2)
    edges.window.send_again(2)
    assert edges.take() == []


def test_orders_of_a_dead_edge_go_to_another_edge() -> None:
    edges = begun(count=6)
    edges.take()
    edges.alive = ["e2"]
    steps = edges.window.edge_dead("e1")
    edges.window.finish(1)
    edges.window.send_some()  # new ones go to the other edge at once
    assert edges.take() == [(5, "e2")]
    assert edges.window.is_at(2, "e2") and not edges.window.is_at(2, "e1") and not edges.window.is_at(6, "e2")
    assert len(list(steps)) == 3
    assert edges.take() == [(2, "e2"), (3, "e2"), (4, "e2")]
    assert list(edges.window.edge_dead("e1")) == []


def test_orders_without_a_live_edge_are_pending() -> None:
    edges = begun(count=3)
    edges.take()
    edges.alive = []
    assert list(edges.window.edge_dead("e1")) == []
    edges.window.add(4, 1)
    edges.window.send_some()
    assert edges.window.lacks_edge and edges.take() == []
    edges.alive = ["e3"]
    edges.window.edge_started()
    assert edges.take() == [(1, "e3"), (2, "e3"), (3, "e3"), (4, "e3")] and not edges.window.lacks_edge


def test_expired_order_frees_the_window() -> None:
    edges = begun()
    edges.take()
    edges.expired = {1, 5}
    edges.window.send_again(1)
    assert edges.take() == [(6, "e1")]
    for number in (2, 3, 4, 6):
        edges.window.finish(number)
    assert edges.window.octets == len(edges.window) == 14
