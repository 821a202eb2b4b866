"""Authorizes forwarded orders at the node that executes them: the operator's role must suffice, whichever router sent
it.

A router authorizes an operator by its certificate, and adds name and role to the order. The executing node checks
again: an order without a role, or of a verb without a row, is refused. Decision: docs/adr/0182-orders-carry-a-role.md.
"""

from access.operators.audit_chain import AuditRecord, Scalar
from access.operators.commands import ROLES, VERBS
from wire.messages.orders import OrderNode

__all__ = ["order_record", "refusal_of"]

SHOWN_MAX = 64


def refusal_of(order: OrderNode) -> str:
    """Return why this order is refused, "" if its role suffices; one line for the operator."""
    row, role = VERBS.get(order.verb), ROLES.get(order.role)
    verb = _line(order.verb)
    if row is None or not row.changes:
        return f"this node carries out no `{verb}`"
    if role is None:
        return f"`{verb}` came without an operator's role: the router that passed it on has an older release"
    if role < row.role:
        return f"`{verb}` wants the role {row.role.name.lower()}; {_line(order.actor)} has {role.name.lower()}"
    return ""


def order_record(order: OrderNode, router: str, refusal: str) -> AuditRecord:
    """Return the audit record of the node that executes or refuses an order.

    Actor and role are from the router, which the record names.
    """
    arguments: dict[str, Scalar] = {"router": router}
    if order.verb != "msg send":  # its subject contains the payload
        arguments["subject"] = _line(order.subject)
    outcome = "refused" if refusal else "done"
    return AuditRecord("order", outcome, order.actor, order.role, verb=order.verb, arguments=arguments, reason=refusal)


def _line(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text[:SHOWN_MAX])
