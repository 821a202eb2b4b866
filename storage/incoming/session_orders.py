"""Orders of operators about stored sessions at their partition's primary: delete, expire, purge the queue.

A session whose client is connected or connecting is neither deleted nor expired. The reply lists the lost state and
leaves when the order is committed.
"""

from storage.hosting.hosted_partition import HostedPartition
from storage.state.durable_sessions import ENDING, DurableSession
from storage.state.timers import EndSession
from wire.messages.orders import NodeOrdered, OrderNode

__all__ = ["SESSION_VERBS", "carry_out"]

PURGE = "queue purge"
SESSION_VERBS = ("session delete", "session expire", PURGE)
NO_EXPIRY_INTERVAL = 0xFFFFFFFF


def carry_out(hosted: HostedPartition, router: str, order: OrderNode) -> None:
    """Execute an order, and reply to the router that forwarded it."""
    partition, client_id = hosted.partition, order.subject
    session = partition.by_client.get(client_id)
    refusal = _refusal(hosted, client_id, session, purge=order.verb == PURGE)
    if refusal or session is None:
        partition.send_control(router, NodeOrdered(order.request, error=refusal))
        return
    if order.verb == PURGE and not order.dry_run:
        hosted.delivery.purges.begin(session, router, order)
        return
    lines = _lost(hosted, session)[: 2 if order.verb == PURGE else None]
    if not order.dry_run:
        partition.note("session_end", order.verb, client_id, detail=f"by {order.actor}")
        if order.verb == "session delete":
            hosted.owners.ends.end(session)
        else:
            session.deadline = max(ENDING + 1, partition.served_ms)  # in the past now
            partition.touch(session)
            partition.work.appendleft(EndSession(session.number))
    partition.send_control(router, NodeOrdered(order.request, count=1, lines=lines))


def _refusal(hosted: HostedPartition, client_id: str, session: DurableSession | None, *, purge: bool) -> str:
    name = repr(client_id[:64])
    if session is None or session.deadline == ENDING:
        return f"client {name} has no stored session: `stratamq session list` shows them"
    if purge:
        return ""
    holder = hosted.owners.holders.get(client_id)
    if session.edge or holder is not None:
        edge = session.edge or (holder.edge if holder is not None else "")
        return f"client {name} is connected at {edge}: `client kick` it first, and ban it if it comes back"
    return f"client {name} is connecting: ask again" if client_id in hosted.owners.openings else ""


def _lost(hosted: HostedPartition, session: DurableSession) -> list[str]:
    will = hosted.owners.wills.of(session.client_id)
    shared = sum(name.startswith("$share/") for name in session.subscriptions)
    lines = [
        f"entries {session.queued}",
        f"bytes {session.queue_bytes}",
        f"subscriptions {len(session.subscriptions)}",
        f"shared {shared}",
        f"will {will.topic[:200] if will is not None else 'none'}",
    ]
    if session.expiry_s != NO_EXPIRY_INTERVAL:
        left_s = max(0, session.deadline - hosted.partition.served_ms) // 1000
        lines.append(f"expires_in_s {left_s}")
    return lines
