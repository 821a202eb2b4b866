"""New stored sessions: whether a CONNECT may make one, and how it begins.

Bounds are a partition's: it counts what it has and asks no other one, because each CONNECT would wait for that. Those
of a user come with its CONNECT; the partition's own hold beside them. Decision: docs/adr/0130-limits-at-partitions.md.
"""

from storage.state.durable_sessions import DurableSession
from storage.state.partition import Partition
from wire.messages.sessions import OpenSession

__all__ = ["make_session", "session_refusal"]


def session_refusal(partition: Partition, request: OpenSession) -> str:
    """Return the counter of a CONNECT that may not make a stored session, "" if it may."""
    if request.client_id in partition.by_client:
        return ""
    if not request.may_create:
        return "refused_session_rate"
    most = partition.settings.sessions_per_user_max
    if partition.sessions_of.get(request.owner, 0) >= min(request.sessions_max or most, most):
        return "refused_sessions_user"
    return "refused_sessions_max" if len(partition.sessions) >= partition.settings.sessions_max else ""


def make_session(partition: Partition, client_id: str) -> DurableSession:
    """Make a stored session of a client ID that has none."""
    number = partition.number << 48 | partition.meta.next_session
    partition.meta.next_session += 1
    session = DurableSession(number, client_id)
    partition.sessions[number] = session
    partition.by_client[client_id] = session
    return session
