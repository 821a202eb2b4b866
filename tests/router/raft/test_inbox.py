"""Messages of other routers to Raft have a bound for each sender, and each has its turn."""

from router.raft.inbox import SENDER_BYTES_MAX, SENDER_MESSAGES_MAX, Inbox
from router.raft.messages import RaftMessage, TimeoutNow


def message(sender: str, term: int = 1) -> RaftMessage:
    return TimeoutNow(sender, "r1", term, 1, 1, 1)


def test_a_sender_that_floods_loses_its_own_messages() -> None:
    """NIST: protect. One list for all was full of a stranger's messages: the leader's heartbeats were dropped."""
    inbox = Inbox()
    for number in range(2 * SENDER_MESSAGES_MAX):
        if inbox.has_room("stolen", 60):
            inbox.add(message("stolen", number), 60)
        else:
            inbox.drop()
    assert (len(inbox), inbox.dropped) == (SENDER_MESSAGES_MAX, SENDER_MESSAGES_MAX)
    assert inbox.has_room("leader", 60)
    inbox.add(message("leader"), 60)
    assert "leader" in [inbox.take().sender for _ in range(2)]


def test_bytes_have_a_bound_too() -> None:
    """One message is taken, however long it is; a frame has a bound of its own."""
    inbox = Inbox()
    while inbox.has_room("stolen", 8 << 20):
        inbox.add(message("stolen"), 8 << 20)
    assert len(inbox) == SENDER_BYTES_MAX // (8 << 20)
    inbox.take()
    assert inbox.has_room("stolen", 8 << 20)
    while len(inbox):
        inbox.take()
    assert inbox.has_room("stolen", 2 * SENDER_BYTES_MAX)


def test_the_order_of_a_sender_stays_and_senders_take_turns() -> None:
    inbox = Inbox()
    for sender, term in (("a", 1), ("a", 2), ("a", 3), ("b", 1), ("c", 1), ("b", 2)):
        inbox.add(message(sender, term), 10)
    taken = [inbox.take() for _ in range(6)]
    assert [(one.sender, one.term) for one in taken] == [("a", 1), ("b", 1), ("c", 1), ("a", 2), ("b", 2), ("a", 3)]
    assert not len(inbox)
