"""Messages that an edge publishes for an operator: the result follows the acknowledgements of all destinations."""

import msgspec
import pytest

from edge.publishing.operator_messages import OPEN_MAX, OPEN_S
from tests.edge.edge_harness import Edge
from tests.edge.session_answers import publishes
from wire.messages.orders import KickOrder, NodeOrdered, OrderNode, SendOrder
from wire.messages.routes import Resolve


def ordered(
    edge: Edge, order: SendOrder | KickOrder, verb: str = "msg send", *, dry_run: bool = False, role: str = "admin"
) -> NodeOrdered:
    """Return the edge's immediate response."""
    edge.held = {NodeOrdered}
    edge.router(OrderNode(7, verb, msgspec.json.encode(order).decode(), dry_run, "ann", role))
    edge.turn()
    (answer,) = edge.take(NodeOrdered)
    assert isinstance(answer, NodeOrdered) and answer.request == 7
    return answer


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_ordered_message_reaches_local_subscriber(qos: int) -> None:
    edge = Edge()
    session = edge.client("reader")
    session.subscribe("plant/+", qos=2)
    session.read()
    answer = ordered(edge, SendOrder(["plant/1"], b"by an operator", qos))
    (copy,) = publishes(session)
    assert (copy.topic_name, copy.payload, copy.qos) == ("plant/1", b"by an operator", qos)
    assert (answer.count, answer.error) == (1, "")


def test_dry_run_publishes_nothing() -> None:
    edge = Edge()
    session = edge.client("reader")
    session.subscribe("plant/+")
    session.read()
    answer = ordered(edge, SendOrder(["plant/1"], b"x"), dry_run=True)
    assert not publishes(session) and answer.count == 0
    assert answer.lines == ["plant/1: 1 subscribers here, 0 other edges, 0 partitions, 0 groups"]


@pytest.mark.parametrize(
    ("order", "why"),
    [
        (SendOrder(["a/+"], b"x"), "topic 'a/+': "),
        (SendOrder(["$SYS/broker/uptime"], b"x"), "what begins with $ is the nodes'"),
        (SendOrder(["a", "$gateway/x"], retain=True), "what begins with $ is the nodes'"),
    ],
)
def test_invalid_order_is_refused_whole(order: SendOrder, why: str) -> None:
    edge = Edge()
    session = edge.client("reader")
    session.subscribe("#")
    session.read()
    answer = ordered(edge, order)
    assert why in answer.error and answer.count == 0 and not publishes(session)


@pytest.mark.parametrize(
    "subject", ["", "{}", '{"topics": []}', '{"topics": ["a"], "qos": 3}', '{"topics": 1}', "\\ud800"]
)
def test_malformed_order_returns_error(subject: str) -> None:
    edge = Edge()
    edge.held = {NodeOrdered}
    for verb in ("msg send", "client kick"):
        edge.router(OrderNode(7, verb, subject, False, "ann", "admin"))
    edge.turn()
    assert all(answer.error.startswith("unreadable order") for answer in edge.take(NodeOrdered))


def test_kicked_client_gets_the_reason_code() -> None:
    """The reason code of the order, and the number of ended connections."""
    edge = Edge()
    session = edge.client("noisy")
    session.read()
    assert ordered(edge, KickOrder("noisy", 0x96), "client kick", dry_run=True).count == 1
    answer = ordered(edge, KickOrder("noisy", 0x96), "client kick")
    (told,) = session.read()
    assert answer.count == 1 and getattr(told, "reason_code", 0) == 0x96


def test_orders_without_route_do_not_block_all_slots() -> None:
    """Each order waits for its topic's owner; the next one is refused, and accepted after their timeout."""
    edge = Edge()
    edge.held = {Resolve, NodeOrdered}
    for number in range(OPEN_MAX + 1):
        order = SendOrder([f"unknown/{number}"], b"x")
        edge.router(OrderNode(number, "msg send", msgspec.json.encode(order).decode(), False, "ann", "operator"))
    edge.turn()
    (refused,) = edge.take(NodeOrdered)
    assert (refused.request, refused.count) == (OPEN_MAX, 0) and "ask again" in refused.error
    edge.now += OPEN_S + 1
    edge.turn()
    assert not edge.take(NodeOrdered)
    other = msgspec.json.encode(SendOrder(["other"], b"x")).decode()
    edge.router(OrderNode(99, "msg send", other, False, "ann", "operator"))
    edge.turn()
    assert not edge.take(NodeOrdered), "it waits for its own topic"


@pytest.mark.parametrize(
    ("verb", "role", "why"),
    [
        ("client kick", "viewer", "wants the role operator; ann has viewer"),
        ("client kick", "", "without an operator's role"),
        ("client kick", "root", "without an operator's role"),
        ("retained clear", "operator", "wants the role admin; ann has operator"),
        ("node list", "admin", "carries out no `node list`"),
        ("client drain", "viewer", "wants the role operator"),
        ("reload", "viewer", "wants the role operator"),
    ],
)
def test_order_with_too_low_role_is_refused(verb: str, role: str, why: str) -> None:
    """A router may be wrong or compromised: the acting node checks the role again."""
    edge = Edge()
    session = edge.client("noisy")
    session.read()
    answer = ordered(edge, KickOrder("noisy"), verb, role=role)
    assert why in answer.error and not answer.count
    assert not session.read(), "nothing was done"
    assert [entry.event for entry in edge.core.node.journal.entries] == ["refused"]


def test_clearing_a_retained_message_requires_admin() -> None:
    """A send order must not bypass the role of ``retained clear``."""
    edge = Edge()
    answer = ordered(edge, SendOrder(["a"], b"", retain=True), role="operator")
    assert "wants the role admin" in answer.error
