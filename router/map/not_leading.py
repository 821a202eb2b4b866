"""The reply of a router that was asked for what only the leader does: it has done nothing, and says who leads."""

from wire.messages.operators import Admin, AdminReply

__all__ = ["does_not_lead"]

NOT_READY = 4


def does_not_lead(question: Admin, node: str, leader: str) -> AdminReply:
    """Return the reply of a router that has done nothing, because another one leads ("" if none does)."""
    text = f"router {node} does not lead; ask {leader or 'again when one is elected'}"
    return AdminReply(question.request, False, {"leader": leader, "leads": False}, text, NOT_READY)
