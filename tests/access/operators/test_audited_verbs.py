"""Audit lines of verbs: which verbs write one, its content, and the replies that wait for it."""

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
    """An audit log whose disk is controlled by the test."""

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


class VerbServer:
    """Verbs of a router, and the replies to its operators."""

    def __init__(self) -> None:
        self.lines = Lines()
        self.verbs = AuditedVerbs("router", self.lines, lambda _: ("10.1.1.1", "0A"))
        self.sent: list[AdminReply] = []

    def replied(self, peer: PeerKey, reply: AdminReply) -> None:
        self.verbs.replied(peer.node, reply, self.sent.append)


@pytest.fixture
def server() -> VerbServer:
    return VerbServer()


def test_a_change_is_answered_when_its_line_is_on_the_disk(server: VerbServer) -> None:
    """Who, with which certificate, from where, what, and the result."""
    question = Admin(7, "user disable", {"user": "bob"})
    assert server.verbs.asked(ADMIN, question) is None and server.verbs.waits(ADMIN.node)
    server.replied(ADMIN, AdminReply(7, True, {"policy_epoch": 12}))
    assert server.sent == []
    record = server.lines.synced()
    assert (record.kind, record.outcome, record.verb, record.epoch) == ("verb", "done", "user disable", 12)
    assert (record.actor, record.role, record.serial, record.address) == ("ann", "admin", "0A", "10.1.1.1")
    assert record.arguments == {"user": "bob", "dry_run": False}
    assert [reply.ok for reply in server.sent] == [True] and not server.verbs.waits(ADMIN.node)


@pytest.mark.parametrize(
    "question", [Admin(7, "node list"), Admin(7, "user disable", {"user": "bob", "dry_run": True})]
)
def test_audited_verbs_read_writes_no_line(server: VerbServer, question: Admin) -> None:
    """It needs no space for one either."""
    server.lines.why = "no room"
    assert server.verbs.asked(ADMIN, question) is None
    server.replied(ADMIN, AdminReply(7, True))
    assert len(server.sent) == 1 and server.lines.waiting == []


def test_a_refused_verb_leaves_a_line(server: VerbServer) -> None:
    assert server.verbs.asked(VIEWER, Admin(3, "user disable", {"user": "bob"})) is None
    server.replied(VIEWER, AdminReply(3, False, None, "router r: wants the role admin", 2))
    record = server.lines.synced()
    assert (record.outcome, record.actor, record.role) == ("refused", "vic", "viewer")
    assert "wants the role admin" in record.reason and len(server.sent) == 1


def test_audited_verbs_full_disk_refuses_changes_only(server: VerbServer) -> None:
    """NIST: detect."""
    server.lines.why = "audit /a has 3 MiB of room, 64 are wanted"
    reply = server.verbs.asked(ADMIN, Admin(7, "user disable", {"user": "bob"}))
    assert reply is not None and not reply.ok and reply.exit_code == 4 and "64 are wanted" in reply.error
    assert not server.verbs.waits(ADMIN.node)


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (AdminReply(7, False, {"policy_epoch": 3}, "not yet in force", 3), "partial"),
        (AdminReply(7, False, None, "no such user", 1), "failed"),
    ],
)
def test_audited_verbs_line_has_result(server: VerbServer, reply: AdminReply, outcome: str) -> None:
    server.verbs.asked(ADMIN, Admin(7, "user disable", {"user": "bob"}))
    server.replied(ADMIN, reply)
    record = server.lines.synced()
    assert (record.outcome, record.reason) == (outcome, reply.error)
    assert server.sent == [reply]


def test_audited_verbs_failed_line_is_reported_with_change(server: VerbServer) -> None:
    server.verbs.asked(ADMIN, Admin(7, "user disable", {"user": "bob"}))
    server.replied(ADMIN, AdminReply(7, True, {"policy_epoch": 3}))
    server.lines.synced("audit /a cannot be written: No space left on device")
    (reply,) = server.sent
    assert not reply.ok and reply.exit_code == 1 and reply.result == {"policy_epoch": 3}
    assert reply.error.startswith("it is done, and has no line: ")


def test_secrets_are_in_no_line(server: VerbServer) -> None:
    record = "$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHRzYWx0$aGFzaGhhc2hoYXNoaGFzaGhhc2g"
    assert server.verbs.asked(ADMIN, Admin(7, "user add", {"user": "bob", "record": record})) is None
    server.replied(ADMIN, AdminReply(7, True, {"policy_epoch": 3}))
    assert "argon2id" not in str(server.lines.synced())


def test_verbs_whose_reply_never_comes_are_bounded(server: VerbServer) -> None:
    for number in range(OPEN_MAX):
        assert server.verbs.asked(ADMIN, Admin(number, "user disable", {"user": "bob"})) is None
    reply = server.verbs.asked(ADMIN, Admin(1 << 40, "user disable", {"user": "bob"}))
    assert reply is not None and "ask again" in reply.error


def test_refused_verbs_beyond_those_that_wait_are_counted(server: VerbServer) -> None:
    """With whom, from where and why: every refusal is recorded."""
    for number in range(OPEN_MAX):
        server.verbs.asked(VIEWER, Admin(number, "user disable", {"user": "bob"}))
    assert not server.lines.noted
    for number in range(OPEN_MAX, OPEN_MAX + 3):
        assert server.verbs.asked(VIEWER, Admin(number, "user disable", {"user": "bob"})) is None
        server.replied(VIEWER, AdminReply(number, False, None, "wants the role admin", 2))
    assert len(server.sent) == 3, "their replies wait for no line"
    for record in server.lines.noted:
        assert (record.outcome, record.actor, record.address) == ("refused", "vic", "10.1.1.1")
        assert record.verb == "user disable" and "wants the role admin" in record.reason
    assert len(server.lines.noted) == 3


@pytest.mark.parametrize("why", ["audit /a has 3 MiB of room", ""])
def test_a_change_that_is_refused_before_it_is_asked_is_counted(server: VerbServer, why: str) -> None:
    """For lack of space, and for a number of another request."""
    if not why:
        assert server.verbs.asked(ADMIN, DISABLE) is None
    server.lines.why = why
    assert server.verbs.asked(ADMIN, Admin(7, "user delete", {"user": "bob"})) is not None
    (record,) = server.lines.noted
    assert (record.outcome, record.actor, record.verb) == ("refused", "ann", "user delete")
    assert record.reason == (why or "a number whose reply is awaited")


DISABLE = Admin(7, "user disable", {"user": "bob"}, order="one")


@pytest.mark.parametrize(
    "second", [Admin(7, "nonsense"), Admin(7, "node list"), Admin(7, "user disable", {"user": "eve"}, order="one")]
)
def test_audited_verbs_repeated_number_takes_no_other_line(server: VerbServer, second: Admin) -> None:
    """A change was executed without a line, or recorded with another verb's result."""
    assert server.verbs.asked(ADMIN, DISABLE) is None
    refusal = server.verbs.asked(ADMIN, second)
    assert refusal is not None and not refusal.ok and "number each question anew" in refusal.error
    server.replied(ADMIN, AdminReply(7, True, {"policy_epoch": 12}))
    record = server.lines.synced()
    assert (record.verb, record.outcome, record.arguments["user"]) == ("user disable", "done", "bob")
    assert server.verbs.asked(ADMIN, second) is None and not server.lines.waiting


def test_no_change_is_begun_by_the_number_of_a_read(server: VerbServer) -> None:
    """Of two reads the first reply ends only the first."""
    for _ in range(2):
        assert server.verbs.asked(ADMIN, Admin(7, "node list")) is None
    for _ in range(2):
        assert server.verbs.asked(ADMIN, DISABLE) is not None
        assert server.verbs.waits(ADMIN.node)
        server.replied(ADMIN, AdminReply(7, True))
    assert not server.verbs.waits(ADMIN.node) and len(server.sent) == 2
    assert server.verbs.asked(ADMIN, DISABLE) is None


def test_a_change_that_is_repeated_has_one_line(server: VerbServer) -> None:
    """Over a new link, because the reply was lost: the routers execute it once."""
    assert server.verbs.asked(ADMIN, DISABLE) is None
    assert server.verbs.asked(ADMIN, msgspec.structs.replace(DISABLE, repeated=True)) is None
    server.replied(ADMIN, AdminReply(7, True, {"policy_epoch": 12}))
    assert server.verbs.asked(ADMIN, Admin(7, "user disable", {"user": "eve"})) is not None, "a reply is awaited"
    server.replied(ADMIN, AdminReply(7, True, {"policy_epoch": 12}))
    assert server.lines.synced().arguments["user"] == "bob" and not server.lines.waiting
    assert len(server.sent) == 2 and not server.verbs.waits(ADMIN.node)


def test_reads_without_replies_are_bounded(server: VerbServer) -> None:
    for number in range(OPEN_MAX + 1):
        assert server.verbs.asked(ADMIN, Admin(number, "node list")) is None
    assert server.verbs.asked(ADMIN, Admin(0, "user disable", {"user": "bob"})) is None, "the oldest one is forgotten"
    assert server.verbs.asked(ADMIN, Admin(1, "user disable", {"user": "bob"})) is not None
