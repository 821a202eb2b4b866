"""Orders to single nodes: forwarded by any router, with one reply of all results that names nodes without an answer."""

from typing import Any

import pytest

from access.operators.arguments import ListenerArguments, MsgSend, ReloadArguments, TraceStop
from access.operators.commands import Operator, OperatorRole
from router.core import RouterCore
from router.operators.for_nodes import for_nodes
from router.operators.node_orders import OPEN_MAX, ORDER_S, TRY_S, NodeOrders
from router.settings import RouterLimits
from wire.messages.cluster_map import ClusterMap, NodeEntry, NodeState
from wire.messages.control import Control, decode_control, encode_control
from wire.messages.frames import FrameKind
from wire.messages.hello import PeerKey
from wire.messages.operators import Admin, AdminReply
from wire.messages.orders import NodeOrdered, OrderNode
from wire.node.events import FrameArrived

ASKER = "operator:ann/cli-1"


class OrdersRouter:
    """The orders of a router, and the messages that it sends."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Control]] = []
        self.orders = NodeOrders(lambda node, message: self.sent.append((node, message)))

    def pass_on(self, *nodes: str, verb: str = "client kick", dry_run: bool = False) -> None:
        self.orders.forward(
            1.0, ASKER, Operator(OperatorRole.OPERATOR, "ann"), Admin(7, verb), nodes, "c1", dry_run=dry_run
        )

    def ordered(self) -> list[tuple[str, int, bool]]:
        """Return node, number and dry run of each sent order, and clear them."""
        found = [(node, one.request, one.dry_run) for node, one in self.sent if isinstance(one, OrderNode)]
        self.sent.clear()
        return found

    def reply(self) -> AdminReply:
        (reply,) = [message for node, message in self.sent if node == ASKER]
        assert isinstance(reply, AdminReply)
        return reply


@pytest.fixture
def sender() -> OrdersRouter:
    return OrdersRouter()


def test_reply_lists_the_result_of_each_node(sender: OrdersRouter) -> None:
    sender.pass_on("e1", "e2")
    assert sender.sent == [(node, OrderNode(1, "client kick", "c1", False, "ann", "operator")) for node in ("e1", "e2")]
    sender.orders.take("e2", NodeOrdered(1, count=2))
    sender.orders.take("e2", NodeOrdered(1, count=9))  # a repeat
    sender.orders.take("e9", NodeOrdered(1, count=9))  # has no such order
    assert len(sender.sent) == 2
    sender.orders.take("e1", NodeOrdered(1))
    reply = sender.reply()
    assert reply.ok and isinstance(reply.result, dict)
    assert [(row["node"], row["count"]) for row in reply.result["nodes"]] == [("e1", 0), ("e2", 2)]


def test_node_without_answer_is_named_with_exit_code_3(sender: OrdersRouter) -> None:
    sender.pass_on("e1", "e2")
    sender.orders.take("e1", NodeOrdered(1))
    assert sender.orders.next_deadline() == 1.0 + ORDER_S
    sender.orders.step(1.0 + ORDER_S)
    reply = sender.reply()
    assert not reply.ok and reply.exit_code == 3 and "from e2" in reply.error
    sender.orders.take("e2", NodeOrdered(1))  # too late
    assert len(sender.sent) == 3 and sender.orders.next_deadline() == float("inf")


def test_equal_errors_of_all_nodes_are_one_line(sender: OrdersRouter) -> None:
    """Regression: there was a line for each of the first five, and none for the others."""
    nodes = [f"e{number}" for number in range(7)]
    sender.pass_on(*nodes)
    for node in nodes:
        sender.orders.take(node, NodeOrdered(1, error="odd" if node == "e3" else "no trace 'x'"))
    assert sender.reply().error == "e0, e1, e2, e4, e5 and 1 more: no trace 'x'\ne3: odd"


def test_error_of_one_node_is_the_error_of_the_reply(sender: OrdersRouter) -> None:
    sender.pass_on("e1", "e2")
    sender.orders.take("e1", NodeOrdered(1, lines=["users: no such file"], error="users: no such file"))
    sender.orders.take("e2", NodeOrdered(1, lines=["logs.level: info -> debug"]))
    reply = sender.reply()
    assert (reply.ok, reply.exit_code, reply.error) == (False, 1, "e1: users: no such file")


def test_trace_refused_by_one_node_starts_nowhere(sender: OrdersRouter) -> None:
    """Regression: it started at all other nodes."""
    sender.pass_on("e1", "e2", verb="trace start")
    assert sender.ordered() == [("e1", 1, True), ("e2", 1, True)]
    sender.orders.take("e1", NodeOrdered(1))
    sender.orders.take("e2", NodeOrdered(1, error="16 traces run"))
    reply = sender.reply()
    assert (reply.ok, reply.exit_code, reply.error) == (False, 1, "e2: 16 traces run") and not sender.ordered()
    assert isinstance(reply.result, dict) and not any(row["done"] for row in reply.result["nodes"])


def test_trace_starts_after_all_nodes_accepted_the_dry_run(sender: OrdersRouter) -> None:
    """After a timeout, a silent node gets the order with the others, and is named."""
    sender.pass_on("e1", "e2", verb="trace start")
    sender.ordered()
    sender.orders.take("e1", NodeOrdered(1))
    assert sender.orders.next_deadline() == 1.0 + TRY_S
    sender.orders.step(1.0 + TRY_S)
    assert sender.ordered() == [("e1", 2, False), ("e2", 2, False)]
    sender.orders.take("e2", NodeOrdered(1, error="too late"))
    sender.orders.take("e1", NodeOrdered(2))
    assert sender.orders.next_deadline() == 1.0 + ORDER_S
    sender.orders.step(1.0 + ORDER_S)
    assert sender.reply().exit_code == 3 and "from e2" in sender.reply().error
    sender.sent.clear()
    sender.pass_on("e1", verb="trace start", dry_run=True)
    assert sender.ordered() == [("e1", 3, True)]
    sender.orders.take("e1", NodeOrdered(3))
    assert sender.reply().ok


def test_order_without_nodes_or_beyond_the_limit_is_refused(sender: OrdersRouter) -> None:
    sender.pass_on()
    assert sender.reply().exit_code == 1
    sender.sent.clear()
    for _ in range(OPEN_MAX):
        sender.pass_on("e1")
    assert not [node for node, _ in sender.sent if node == ASKER]
    sender.pass_on("e1")
    assert sender.reply().exit_code == 4


@pytest.mark.parametrize(("role", "granted"), [("viewer", False), ("operator", True), ("admin", True)])
def test_order_requires_role_operator(role: str, granted: bool) -> None:
    """A viewer may only read; ``reload`` and ``client kick`` need an operator."""
    core = RouterCore(NodeEntry("r0", "router", 1, "r0:1"), RouterLimits())
    peer = PeerKey(f"{role}:ann/cli-1", "operator", 1)
    for verb, arguments in (("reload", {}), ("client kick", {"client_id": "c"})):
        question: dict[str, Any] = dict(arguments)
        frame = FrameArrived(peer, FrameKind.CONTROL, encode_control(Admin(7, verb, question)))
        (reply,) = [decode_control(data) for node, _, data in core.handle(1.0, [frame]).sends if node == peer.node]
        assert isinstance(reply, AdminReply) and not reply.ok
        assert ("no such node" in reply.error) == granted, reply.error


def test_order_to_a_node_of_the_wrong_tier_names_valid_nodes() -> None:
    """Regression: for a live storage node the error was `no such node is alive`."""
    alive = ClusterMap("c", base_shards=1)
    for name, tier in (("e1", "edge"), ("e2", "edge"), ("s1", "storage")):
        alive.nodes[name] = NodeEntry(name, tier, 1, f"{name}:1", state=NodeState.ACTIVE)
    for judged, why in (
        (MsgSend(topic="t", payload=b"x", node="s1"), "no edge 's1' is alive; there are e1, e2"),
        (TraceStop(trace="t", node="r9"), "no edge or storage node 'r9' is alive; there are e1, e2, s1"),
        (ReloadArguments(node="x"), "no node 'x' is alive; there are e1, e2, s1"),
        (ListenerArguments(listener="tls", node="s1"), "no edge 's1' is alive; there are e1, e2"),
    ):
        with pytest.raises(ValueError, match=f"^{why}$"):
            for_nodes(judged, alive)
    assert for_nodes(ReloadArguments(), alive).nodes == ("e1", "e2", "s1")


@pytest.mark.parametrize(("role", "taken"), [("operator", 1), ("viewer", 0), ("", 0)])
def test_forwarded_order_is_authorized_again(sender: OrdersRouter, role: str, taken: int) -> None:
    """The executing router checks the role again."""
    sender.orders.take("r1", OrderNode(3, "reload", "", False, "ann", role))
    ((router, _, refusal),) = sender.orders.take_for_process()
    assert (router, not refusal) == ("r1", bool(taken)), "a refused one has a line in the audit too"
    assert sender.orders.take_for_process() == []
    assert ["role" in message.error for _, message in sender.sent if isinstance(message, NodeOrdered)] == [True] * (
        1 - taken
    )


def test_order_names_the_client_of_a_service_with_the_lower_role() -> None:
    """The admin service's certificate may do all; nodes refuse orders beyond its caller's role."""
    core = RouterCore(NodeEntry("r0", "router", 1, "r0:1"), RouterLimits())
    core.machine.map = ClusterMap(
        epoch=1, cluster="c", nodes={"e0": NodeEntry("e0", "edge", 1, "e0:1", state="active")}
    )
    peer = PeerKey("admin:service/admin-1", "operator", 1)
    question = Admin(7, "client kick", {"client_id": "c"}, actor="bob" * 85, role="operator")
    frame = FrameArrived(peer, FrameKind.CONTROL, encode_control(question))
    sends = core.handle(1.0, [frame]).sends
    (order,) = [decode_control(data) for node, _, data in sends if node == "e0"]
    assert isinstance(order, OrderNode)
    assert (order.actor, order.role) == (("bob" * 85 + " by service")[:256], "operator")
