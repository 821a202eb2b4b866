"""The rules that granted a session's filters, and the filters that an edge has to authorize itself.

Rules are a number that edges create; storage only compares it. A session has the number of the rules that granted all
of its filters, or 0. Filters of two rules count as granted by neither, so that no edge trusts another one's grants.
Authorization does not depend on this report: an edge authorizes each message of a session without a valid number.

Queued messages may match a filter that other rules granted, or a revoked right. ``recheck_below`` marks them: until
all of them have left, the session has no valid number. Edges that confirm filters set the mark. So does each new
primary, because it does not know the former one's pending checks (docs/revocation.md, B3).
"""

from storage.state.durable_sessions import DurableSession
from wire.messages.ranges import SYS_FILTERS_MAX
from wire.messages.sessions import SessionOpened, SessionSubscription, SubscribeSession

__all__ = [
    "REPORTED_FILTER_BYTES_MAX",
    "TOLD_MAX",
    "add_filters",
    "mark_authorized",
    "mark_partial",
    "note_granted",
    "sys_filters",
]

TOLD_MAX = 2_000  # filters in the response to a CONNECT: about half a millisecond
REPORTED_FILTER_BYTES_MAX = 1024 * 1024  # of them, well below a frame; a character may take four


def add_filters(session: DurableSession, judged: int, answer: SessionOpened) -> bool:
    """Write to a CONNECT's response whether a session's filters are authorized, and list them if not.

    Args:
        session: Opened by that CONNECT.
        judged: Number of the edge's rules, 0 for none.
        answer: Filled in here.

    Returns:
        False if the filters exceed the response.
    """
    if not judged:
        return True
    if session.judged == judged and session.is_judged and not session.made("partial"):
        answer.judged = True
        return True
    filters = session.subscriptions
    if len(filters) > TOLD_MAX or 4 * sum(map(len, filters)) > REPORTED_FILTER_BYTES_MAX:
        return False
    answer.subscriptions = list(filters.values())
    return True


def sys_filters(session: DurableSession) -> list[SessionSubscription]:
    """Return the filters of a session under $SYS, at most as many as a CONNECT's response allows."""
    held = session.made("subscriptions") or {}
    return [subscription for name, subscription in held.items() if name.startswith("$SYS")][:SYS_FILTERS_MAX]


def note_granted(session: DurableSession, request: SubscribeSession, held: int, granted: int) -> None:
    """Record the rules that granted the filters of a session.

    Args:
        session: The session of the filters.
        request: Without a filter it confirms all filters of the session.
        held: Number of filters that the session had before.
        granted: Number of filters that it got.
    """
    if not request.subscriptions:
        mark_authorized(session, request.judged or session.judged)
    elif not held:
        mark_authorized(session, request.judged)
    elif granted and request.judged != session.judged:
        session.judged = 0


def mark_authorized(session: DurableSession, judged: int) -> None:
    """Record that these rules granted all filters of a session; queued messages may need another check."""
    if judged != session.judged:
        session.judged = judged
        session.recheck_below = session.next_seq


def mark_partial(session: DurableSession, subscription: SessionSubscription, *, partial: bool) -> None:
    """Record whether a filter is granted in part."""
    if partial:
        session.partial.add(subscription.topic_filter)
    elif session.made("partial"):
        session.partial.discard(subscription.topic_filter)
