"""The reply of a router to a request that only the leader executes: no effect, and the leader's name."""

from wire.messages.operators import Admin, AdminReply

__all__ = ["does_not_lead"]

NOT_READY = 4


def does_not_lead(question: Admin, node: str, leader: str) -> AdminReply:
    """Return the reply of a router that does not lead; ``leader`` is "" if there is none."""
    text = f"router {node} does not lead; ask {leader or 'again when one is elected'}"
    return AdminReply(question.request, False, {"leader": leader, "leads": False}, text, NOT_READY)
