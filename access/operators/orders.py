"""Which orders a node carries out: those whose verb the operator's role may give, whichever router passed them on.

A router judges an operator by its certificate, and says in the order who that is and which role counts. The node that
acts looks once more: an order without a role, or of a verb without a row, is refused.
Decision: docs/adr/0182-orders-carry-a-role.md.
"""

from access.operators.audit_chain import AuditRecord, Scalar
from access.operators.commands import ROLES, VERBS
from wire.messages.orders import OrderNode

__all__ = ["order_record", "refusal_of"]

SHOWN_MAX = 64


def refusal_of(order: OrderNode) -> str:
    """Return why this order is not carried out, "" if its role suffices; one line for the operator."""
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
    """Return the audit line of the node that carries an order out, or refuses it.

    Actor and role are what the router said; the line names that router.
    """
    arguments: dict[str, Scalar] = {"router": router}
    if order.verb != "msg send":  # its subject has the payload
        arguments["subject"] = _line(order.subject)
    outcome = "refused" if refusal else "done"
    return AuditRecord("order", outcome, order.actor, order.role, verb=order.verb, arguments=arguments, reason=refusal)


def _line(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text[:SHOWN_MAX])
