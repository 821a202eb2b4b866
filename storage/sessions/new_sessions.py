"""New stored sessions: the limits on creating one, and its initial state.

A partition's bounds count its own sessions. A user's bounds arrive with its CONNECT and apply over all partitions, as
far as this node knows, because no CONNECT waits for another one. Decisions: docs/adr/0130-limits-at-partitions.md,
docs/adr/0135-users-over-all-partitions.md.
"""

from storage.state.durable_sessions import DurableSession
from storage.state.partition import Partition
from wire.messages.sessions import OpenSession

__all__ = ["make_session", "session_refusal"]


def session_refusal(partition: Partition, request: OpenSession) -> str:
    """Return the counter name of a refusal to create a stored session, "" if it is allowed."""
    if request.client_id in partition.by_client:
        return ""
    if not request.may_create:
        return "refused_session_rate"
    if partition.sessions_of.get(request.owner, 0) >= partition.settings.sessions_per_user_max:
        return "refused_sessions_user"
    most = request.sessions_max if request.owner else 0
    if most and partition.sums.sessions(request.owner, partition.now) >= most:
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
