"""Which verbs leave a line, what it says, and which replies wait for it."""

from collections.abc import Callable

import msgspec
import pytest

from access.operators.audit_chain import AuditRecord
from access.operators.audited_commands import OPEN_MAX, AuditedVerbs
from wire.messages.hello import PeerKey
from wire.messages.operators import Admin, AdminReply

ADMIN = PeerKey("admin:ann/cli-1", "operator", 1)
VIEWER = PeerKey("viewer:vic/cli-2", "operator", 1)


class Lines:
    """An audit whose disk answers when it is told to."""

    def __init__(self) -> None:
        self.why = ""
        self.waiting: list[tuple[AuditRecord, Callable[[str], None]]] = []
        self.noted: list[AuditRecord] = []

    def note(self, record: AuditRecord) -> None:
        self.noted.append(record)

    def refusal(self) -> str:
        return self.why

    def write(self, record: AuditRecord, then: Callable[[str], None]) -> None:
        self.waiting.append((record, then))

    def synced(self, why: str = "") -> AuditRecord:
        record, then = self.waiting.pop(0)
        then(why)
        return record


class Desk:
    """Verbs of a router, and what its operators are sent."""

    def __init__(self) -> None:
        self.lines = Lines()
        self.verbs = AuditedVerbs("router", self.lines, lambda _: ("10.1.1.1", "0A"))
        self.sent: list[AdminReply] = []

    def replied(self, peer: PeerKey, reply: AdminReply) -> None:
        self.verbs.replied(peer.node, reply, self.sent.append)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_change_is_answered_when_its_line_is_on_the_disk(desk: Desk) -> None:
    """NIST: detect. Who, with which certificate, from where, what, and how it ended."""
    question = Admin(7, "user disable", {"user": "bob"})
    assert desk.verbs.asked(ADMIN, question) is None and desk.verbs.waits(ADMIN.node)
    desk.replied(ADMIN, AdminReply(7, True, {"policy_epoch": 12}))
    assert desk.sent == []
    record = desk.lines.synced()
    assert (record.kind, record.outcome, record.verb, record.epoch) == ("verb", "done", "user disable", 12)
    assert (record.actor, record.role, record.serial, record.address) == ("ann", "admin", "0A", "10.1.1.1")
    assert record.arguments == {"user": "bob", "dry_run": False}
    assert [reply.ok for reply in desk.sent] == [True] and not desk.verbs.waits(ADMIN.node)


@pytest.mark.parametrize(
    "question", [Admin(7, "node list"), Admin(7, "user disable", {"user": "bob", "dry_run": True})]
)
def test_what_changes_nothing_leaves_no_line(desk: Desk, question: Admin) -> None:
    """NIST: detect. Nor does it want room for one."""
    desk.lines.why = "no room"
    assert desk.verbs.asked(ADMIN, question) is None
    desk.replied(ADMIN, AdminReply(7, True))
    assert len(desk.sent) == 1 and desk.lines.waiting == []


def test_a_refused_verb_leaves_a_line(desk: Desk) -> None:
    assert desk.verbs.asked(VIEWER, Admin(3, "user disable", {"user": "bob"})) is None
    desk.replied(VIEWER, AdminReply(3, False, None, "router r: wants the role admin", 2))
    record = desk.lines.synced()
    assert (record.outcome, record.actor, record.role) == ("refused", "vic", "viewer")
    assert "wants the role admin" in record.reason and len(desk.sent) == 1


def test_without_room_a_change_is_refused_and_a_question_is_not(desk: Desk) -> None:
    """NIST: detect."""
    desk.lines.why = "audit /a has 3 MiB of room, 64 are wanted"
    reply = desk.verbs.asked(ADMIN, Admin(7, "user disable", {"user": "bob"}))
    assert reply is not None and not reply.ok and reply.exit_code == 4 and "64 are wanted" in reply.error
    assert not desk.verbs.waits(ADMIN.node)


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (AdminReply(7, False, {"policy_epoch": 3}, "not yet in force", 3), "partial"),
        (AdminReply(7, False, None, "no such user", 1), "failed"),
    ],
)
def test_the_line_says_how_it_ended(desk: Desk, reply: AdminReply, outcome: str) -> None:
    desk.verbs.asked(ADMIN, Admin(7, "user disable", {"user": "bob"}))
    desk.replied(ADMIN, reply)
    record = desk.lines.synced()
    assert (record.outcome, record.reason) == (outcome, reply.error)
    assert desk.sent == [reply]


def test_a_change_whose_line_failed_is_said_to_stand_without_one(desk: Desk) -> None:
    desk.verbs.asked(ADMIN, Admin(7, "user disable", {"user": "bob"}))
    desk.replied(ADMIN, AdminReply(7, True, {"policy_epoch": 3}))
    desk.lines.synced("audit /a cannot be written: No space left on device")
    (reply,) = desk.sent
    assert not reply.ok and reply.exit_code == 1 and reply.result == {"policy_epoch": 3}
    assert reply.error.startswith("it is done, and has no line: ")


def test_secrets_are_in_no_line(desk: Desk) -> None:
    record = "$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHRzYWx0$aGFzaGhhc2hoYXNoaGFzaGhhc2g"
    assert desk.verbs.asked(ADMIN, Admin(7, "user add", {"user": "bob", "record": record})) is None
    desk.replied(ADMIN, AdminReply(7, True, {"policy_epoch": 3}))
    assert "argon2id" not in str(desk.lines.synced())


def test_verbs_whose_reply_never_comes_are_bounded(desk: Desk) -> None:
    for number in range(OPEN_MAX):
        assert desk.verbs.asked(ADMIN, Admin(number, "user disable", {"user": "bob"})) is None
    reply = desk.verbs.asked(ADMIN, Admin(1 << 40, "user disable", {"user": "bob"}))
    assert reply is not None and "ask again" in reply.error


def test_refused_verbs_beyond_those_that_wait_are_counted(desk: Desk) -> None:
    """NIST: detect. With whom, from where and why: none is refused without a trace."""
    for number in range(OPEN_MAX):
        desk.verbs.asked(VIEWER, Admin(number, "user disable", {"user": "bob"}))
    assert not desk.lines.noted
    for number in range(OPEN_MAX, OPEN_MAX + 3):
        assert desk.verbs.asked(VIEWER, Admin(number, "user disable", {"user": "bob"})) is None
        desk.replied(VIEWER, AdminReply(number, False, None, "wants the role admin", 2))
    assert len(desk.sent) == 3, "their replies wait for no line"
    for record in desk.lines.noted:
        assert (record.outcome, record.actor, record.address) == ("refused", "vic", "10.1.1.1")
        assert record.verb == "user disable" and "wants the role admin" in record.reason
    assert len(desk.lines.noted) == 3


@pytest.mark.parametrize("why", ["audit /a has 3 MiB of room", ""])
def test_a_change_that_is_refused_before_it_is_asked_is_counted(desk: Desk, why: str) -> None:
    """NIST: detect. For want of room, and for a number that another question has."""
    if not why:
        assert desk.verbs.asked(ADMIN, DISABLE) is None
    desk.lines.why = why
    assert desk.verbs.asked(ADMIN, Admin(7, "user delete", {"user": "bob"})) is not None
    (record,) = desk.lines.noted
    assert (record.outcome, record.actor, record.verb) == ("refused", "ann", "user delete")
    assert record.reason == (why or "a number whose reply is awaited")


DISABLE = Admin(7, "user disable", {"user": "bob"}, order="one")


@pytest.mark.parametrize(
    "second", [Admin(7, "nonsense"), Admin(7, "node list"), Admin(7, "user disable", {"user": "eve"}, order="one")]
)
def test_no_question_takes_the_line_of_another_one_by_its_number(desk: Desk, second: Admin) -> None:
    """NIST: detect. A change was carried out without a line, or had another verb's outcome."""
    assert desk.verbs.asked(ADMIN, DISABLE) is None
    refusal = desk.verbs.asked(ADMIN, second)
    assert refusal is not None and not refusal.ok and "number each question anew" in refusal.error
    desk.replied(ADMIN, AdminReply(7, True, {"policy_epoch": 12}))
    record = desk.lines.synced()
    assert (record.verb, record.outcome, record.arguments["user"]) == ("user disable", "done", "bob")
    assert desk.verbs.asked(ADMIN, second) is None and not desk.lines.waiting


def test_no_change_is_begun_by_the_number_of_a_read(desk: Desk) -> None:
    """NIST: detect. Of two reads the first reply ends the first alone."""
    for _ in range(2):
        assert desk.verbs.asked(ADMIN, Admin(7, "node list")) is None
    for _ in range(2):
        assert desk.verbs.asked(ADMIN, DISABLE) is not None
        assert desk.verbs.waits(ADMIN.node)
        desk.replied(ADMIN, AdminReply(7, True))
    assert not desk.verbs.waits(ADMIN.node) and len(desk.sent) == 2
    assert desk.verbs.asked(ADMIN, DISABLE) is None


def test_a_change_that_is_repeated_has_one_line(desk: Desk) -> None:
    """Over a new link, because the reply did not come: the routers carry it out once."""
    assert desk.verbs.asked(ADMIN, DISABLE) is None
    assert desk.verbs.asked(ADMIN, msgspec.structs.replace(DISABLE, repeated=True)) is None
    desk.replied(ADMIN, AdminReply(7, True, {"policy_epoch": 12}))
    assert desk.verbs.asked(ADMIN, Admin(7, "user disable", {"user": "eve"})) is not None, "a reply is awaited"
    desk.replied(ADMIN, AdminReply(7, True, {"policy_epoch": 12}))
    assert desk.lines.synced().arguments["user"] == "bob" and not desk.lines.waiting
    assert len(desk.sent) == 2 and not desk.verbs.waits(ADMIN.node)


def test_reads_without_replies_are_bounded(desk: Desk) -> None:
    for number in range(OPEN_MAX + 1):
        assert desk.verbs.asked(ADMIN, Admin(number, "node list")) is None
    assert desk.verbs.asked(ADMIN, Admin(0, "user disable", {"user": "bob"})) is None, "the oldest one is forgotten"
    assert desk.verbs.asked(ADMIN, Admin(1, "user disable", {"user": "bob"})) is not None
