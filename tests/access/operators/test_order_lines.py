"""Audit lines of orders at the executing node: operator, role, and the forwarding router."""

from access.operators.audit_chain import AuditRecord
from access.operators.orders import order_record
from tests.edge.edge_harness import Edge
from wire.messages.orders import OrderNode


def test_an_edge_writes_a_line_for_each_order() -> None:
    """Executed and refused; a dry run changes nothing."""
    edge = Edge()
    lines: list[AuditRecord] = []
    edge.core.node.audit = lines.append
    edge.core.node.ordered = lambda *_: None
    for order in (
        OrderNode(1, "reload", "", False, "ann", "admin"),
        OrderNode(2, "reload", "", True, "ann", "admin"),
        OrderNode(3, "reload", "", False, "eve", "viewer"),
    ):
        edge.router(order)
    assert [(line.kind, line.actor, line.role, line.verb, line.outcome) for line in lines] == [
        ("order", "ann", "admin", "reload", "done"),
        ("order", "eve", "viewer", "reload", "refused"),
    ]
    assert lines[0].arguments["router"] == "r0" and lines[1].reason


def test_a_line_has_no_payload() -> None:
    line = order_record(OrderNode(1, "msg send", "secret", False, "ann", "admin"), "r0", "")
    assert line.arguments == {"router": "r0"}
