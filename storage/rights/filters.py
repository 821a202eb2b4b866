"""Which rules granted the filters of a session, and what an edge is told of filters that its own rules did not grant.

Rules are a number that edges make; storage compares it and nothing else. A session has the number of the rules that
granted all of its filters, or 0: filters of two rules count as granted by neither, so that no edge takes for its own
what another one granted. Rights do not depend on what is told here: an edge judges each message of a session that it
is not told to be judged.

What is queued may have come by a filter that other rules granted, or by a right that is gone. ``recheck_below`` marks
it: until all of that has left, the session is not told to be judged. Edges that confirm filters set the mark, and so
does each primary that begins: it knows nothing of what the former one had still to judge, and absence of knowledge is a
mark (docs/revocation.md, B3).
"""

from storage.state.durable_sessions import DurableSession
from wire.messages.ranges import SYS_FILTERS_MAX
from wire.messages.sessions import SessionOpened, SessionSubscription, SubscribeSession

__all__ = ["TOLD_BYTES", "TOLD_MAX", "judge_all", "mark_partial", "note_granted", "sys_filters", "tell_filters"]

TOLD_MAX = 2_000  # filters in the answer to a CONNECT: about half a millisecond
TOLD_BYTES = 1024 * 1024  # of them, well below a frame; a character may take four


def tell_filters(session: DurableSession, judged: int, answer: SessionOpened) -> bool:
    """Say in the answer to a CONNECT whether a session's filters are judged, and name them if not.

    Args:
        session: Opened by that CONNECT.
        judged: The rules of its edge, 0 for none.
        answer: Filled in here.

    Returns:
        False if there are too many to be told.
    """
    if not judged:
        return True
    if session.judged == judged and session.is_judged and not session.made("partial"):
        answer.judged = True
        return True
    filters = session.subscriptions
    if len(filters) > TOLD_MAX or 4 * sum(map(len, filters)) > TOLD_BYTES:
        return False
    answer.subscriptions = list(filters.values())
    return True


def sys_filters(session: DurableSession) -> list[SessionSubscription]:
    """Return the filters of a session under $SYS, no more than an answer to a CONNECT takes."""
    held = session.made("subscriptions") or {}
    return [subscription for name, subscription in held.items() if name.startswith("$SYS")][:SYS_FILTERS_MAX]


def note_granted(session: DurableSession, request: SubscribeSession, held: int, granted: int) -> None:
    """Note by which rules the filters of a session are granted now.

    Args:
        session: Whose they are.
        request: Without a filter it says that all that the session has are judged.
        held: Filters that the session had before.
        granted: Filters that it got.
    """
    if not request.subscriptions:
        judge_all(session, request.judged or session.judged)
    elif not held:
        judge_all(session, request.judged)
    elif granted and request.judged != session.judged:
        session.judged = 0


def judge_all(session: DurableSession, judged: int) -> None:
    """All filters of a session are judged by these rules; what others granted may have queued what waits."""
    if judged != session.judged:
        session.judged = judged
        session.recheck_below = session.next_seq


def mark_partial(session: DurableSession, subscription: SessionSubscription, *, partial: bool) -> None:
    """Keep in mind whether a filter is granted in part."""
    if partial:
        session.partial.add(subscription.topic_filter)
    elif session.made("partial"):
        session.partial.discard(subscription.topic_filter)
