"""Messages of other routers to Raft have a limit for each sender, and are taken round-robin."""

from router.raft.inbox import SENDER_BYTES_MAX, SENDER_MESSAGES_MAX, Inbox
from router.raft.messages import RaftMessage, TimeoutNow


def message(sender: str, term: int = 1) -> RaftMessage:
    return TimeoutNow(sender, "r1", term, 1, 1, 1)


def test_flooding_sender_loses_its_own_messages() -> None:
    """Regression: one shared queue was filled by a non-member, and the leader's heartbeats were dropped."""
    inbox = Inbox()
    for number in range(2 * SENDER_MESSAGES_MAX):
        if inbox.accepts("stolen", 60):
            inbox.add(message("stolen", number), 60)
        else:
            inbox.drop()
    assert (len(inbox), inbox.dropped) == (SENDER_MESSAGES_MAX, SENDER_MESSAGES_MAX)
    assert inbox.accepts("leader", 60)
    inbox.add(message("leader"), 60)
    assert "leader" in [inbox.take().sender for _ in range(2)]


def test_queue_is_limited_in_bytes() -> None:
    """One message of any length is accepted; frames have their own limit."""
    inbox = Inbox()
    while inbox.accepts("stolen", 8 << 20):
        inbox.add(message("stolen"), 8 << 20)
    assert len(inbox) == SENDER_BYTES_MAX // (8 << 20)
    inbox.take()
    assert inbox.accepts("stolen", 8 << 20)
    while len(inbox):
        inbox.take()
    assert inbox.accepts("stolen", 2 * SENDER_BYTES_MAX)


def test_senders_alternate_and_each_keeps_its_order() -> None:
    inbox = Inbox()
    for sender, term in (("a", 1), ("a", 2), ("a", 3), ("b", 1), ("c", 1), ("b", 2)):
        inbox.add(message(sender, term), 10)
    taken = [inbox.take() for _ in range(6)]
    assert [(one.sender, one.term) for one in taken] == [("a", 1), ("b", 1), ("c", 1), ("a", 2), ("b", 2), ("a", 3)]
    assert not len(inbox)
