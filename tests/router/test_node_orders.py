"""Orders to single nodes: passed on by any router, one reply of what the nodes said, silent ones named."""

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


class Desk:
    """The orders of a router, and what it sends."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Control]] = []
        self.orders = NodeOrders(lambda node, message: self.sent.append((node, message)))

    def pass_on(self, *nodes: str, verb: str = "client kick", dry_run: bool = False) -> None:
        self.orders.pass_on(
            1.0, ASKER, Operator(OperatorRole.OPERATOR, "ann"), Admin(7, verb), nodes, "c1", dry_run=dry_run
        )

    def ordered(self) -> list[tuple[str, int, bool]]:
        """Return node, number and trial of each order, and forget them."""
        found = [(node, one.request, one.dry_run) for node, one in self.sent if isinstance(one, OrderNode)]
        self.sent.clear()
        return found

    def reply(self) -> AdminReply:
        (reply,) = [message for node, message in self.sent if node == ASKER]
        assert isinstance(reply, AdminReply)
        return reply


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_the_reply_has_what_each_node_said(desk: Desk) -> None:
    desk.pass_on("e1", "e2")
    assert desk.sent == [(node, OrderNode(1, "client kick", "c1", False, "ann", "operator")) for node in ("e1", "e2")]
    desk.orders.take("e2", NodeOrdered(1, count=2))
    desk.orders.take("e2", NodeOrdered(1, count=9))  # said twice
    desk.orders.take("e9", NodeOrdered(1, count=9))  # nobody asked it
    assert len(desk.sent) == 2
    desk.orders.take("e1", NodeOrdered(1))
    reply = desk.reply()
    assert reply.ok and isinstance(reply.result, dict)
    assert [(row["node"], row["count"]) for row in reply.result["nodes"]] == [("e1", 0), ("e2", 2)]


def test_a_silent_node_is_named_with_exit_code_3(desk: Desk) -> None:
    desk.pass_on("e1", "e2")
    desk.orders.take("e1", NodeOrdered(1))
    assert desk.orders.next_deadline() == 1.0 + ORDER_S
    desk.orders.step(1.0 + ORDER_S)
    reply = desk.reply()
    assert not reply.ok and reply.exit_code == 3 and "from e2" in reply.error
    desk.orders.take("e2", NodeOrdered(1))  # too late
    assert len(desk.sent) == 3 and desk.orders.next_deadline() == float("inf")


def test_a_mistake_that_all_nodes_name_is_one_line(desk: Desk) -> None:
    """It was a line for each of the first five, and no word of the others."""
    nodes = [f"e{number}" for number in range(7)]
    desk.pass_on(*nodes)
    for node in nodes:
        desk.orders.take(node, NodeOrdered(1, error="odd" if node == "e3" else "no trace 'x'"))
    assert desk.reply().error == "e0, e1, e2, e4, e5 and 1 more: no trace 'x'\ne3: odd"


def test_a_mistake_of_one_node_is_the_reply_s(desk: Desk) -> None:
    desk.pass_on("e1", "e2")
    desk.orders.take("e1", NodeOrdered(1, lines=["users: no such file"], error="users: no such file"))
    desk.orders.take("e2", NodeOrdered(1, lines=["logs.level: info -> debug"]))
    reply = desk.reply()
    assert (reply.ok, reply.exit_code, reply.error) == (False, 1, "e1: users: no such file")


def test_a_trace_that_one_node_refuses_begins_nowhere(desk: Desk) -> None:
    """It began at all others: the seventeenth of one node, where the rest had room."""
    desk.pass_on("e1", "e2", verb="trace start")
    assert desk.ordered() == [("e1", 1, True), ("e2", 1, True)]
    desk.orders.take("e1", NodeOrdered(1))
    desk.orders.take("e2", NodeOrdered(1, error="16 traces run"))
    reply = desk.reply()
    assert (reply.ok, reply.exit_code, reply.error) == (False, 1, "e2: 16 traces run") and not desk.ordered()
    assert isinstance(reply.result, dict) and not any(row["done"] for row in reply.result["nodes"])


def test_a_trace_that_all_nodes_have_room_for_begins(desk: Desk) -> None:
    """A silent node is waited for a while, then ordered with the others, and named."""
    desk.pass_on("e1", "e2", verb="trace start")
    desk.ordered()
    desk.orders.take("e1", NodeOrdered(1))
    assert desk.orders.next_deadline() == 1.0 + TRY_S
    desk.orders.step(1.0 + TRY_S)
    assert desk.ordered() == [("e1", 2, False), ("e2", 2, False)]
    desk.orders.take("e2", NodeOrdered(1, error="too late"))
    desk.orders.take("e1", NodeOrdered(2))
    assert desk.orders.next_deadline() == 1.0 + ORDER_S
    desk.orders.step(1.0 + ORDER_S)
    assert desk.reply().exit_code == 3 and "from e2" in desk.reply().error
    desk.sent.clear()
    desk.pass_on("e1", verb="trace start", dry_run=True)
    assert desk.ordered() == [("e1", 3, True)]
    desk.orders.take("e1", NodeOrdered(3))
    assert desk.reply().ok


def test_nobody_to_order_and_too_many_orders(desk: Desk) -> None:
    desk.pass_on()
    assert desk.reply().exit_code == 1
    desk.sent.clear()
    for _ in range(OPEN_MAX):
        desk.pass_on("e1")
    assert not [node for node, _ in desk.sent if node == ASKER]
    desk.pass_on("e1")
    assert desk.reply().exit_code == 4


@pytest.mark.parametrize(("role", "granted"), [("viewer", False), ("operator", True), ("admin", True)])
def test_who_may_order(role: str, granted: bool) -> None:
    """A viewer reads; ``reload`` and ``client kick`` want an operator."""
    core = RouterCore(NodeEntry("r0", "router", 1, "r0:1"), RouterLimits())
    peer = PeerKey(f"{role}:ann/cli-1", "operator", 1)
    for verb, arguments in (("reload", {}), ("client kick", {"client_id": "c"})):
        question: dict[str, Any] = dict(arguments)
        frame = FrameArrived(peer, FrameKind.CONTROL, encode_control(Admin(7, verb, question)))
        (said,) = [decode_control(data) for node, _, data in core.handle(1.0, [frame]).sends if node == peer.node]
        assert isinstance(said, AdminReply) and not said.ok
        assert ("no such node" in said.error) == granted, said.error


def test_a_node_that_cannot_carry_an_order_out_is_named() -> None:
    """With those that can; it said `no such node is alive`, of a storage node that lives."""
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
def test_a_router_carries_out_no_order_of_too_low_a_role(desk: Desk, role: str, taken: int) -> None:
    """Another router passed it on: the one that acts judges once more."""
    desk.orders.take("r1", OrderNode(3, "reload", "", False, "ann", role))
    ((router, _, refusal),) = desk.orders.take_for_process()
    assert (router, not refusal) == ("r1", bool(taken)), "a refused one has a line in the audit too"
    assert desk.orders.take_for_process() == []
    assert ["role" in message.error for _, message in desk.sent if isinstance(message, NodeOrdered)] == [True] * (
        1 - taken
    )


def test_the_order_names_whom_a_service_asks_for_with_the_lower_role() -> None:
    """The admin service's certificate may do all; what its caller may not, nodes do not do."""
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
