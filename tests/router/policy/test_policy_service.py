"""Policy commands at a leader: proposed, committed, and answered when no edge acts by the former policy."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from access.policy.commands import AddUser, encode_policy_command
from access.policy.records import User
from bench.routes import EDGES, Router
from router.events import Applied, ProposalFailed, RoleChanged, RoundEnded, RouterReady
from router.map.commands import DeclareDead, RegisterNode, encode_command
from router.policy.policy_commands import CHANGING
from router.policy.verb_waits import RECEIVES_S, WAIT_S
from tests.access.policy.test_machine import HASH
from wire.messages.cluster_map import NodeEntry
from wire.messages.control import Control, decode_control, encode_control
from wire.messages.frames import FrameKind
from wire.messages.hello import PeerKey
from wire.messages.nodes import Heartbeat, Leave
from wire.messages.operators import Admin, AdminReply
from wire.messages.policy import AskCredentials, FetchUsers, FollowPolicy, PolicyPaged, PolicyStepped, UserRecords
from wire.node.events import FrameArrived

ADMIN = PeerKey("admin:ann/1", "operator", 1)
VIEWER = PeerKey("viewer:ann/1", "operator", 1)
FENCE_S = 10.0
DIGEST = "0a" * 32


class Leader:
    """A leading router with three edges, whose commands commit at once."""

    def __init__(self, utc: Callable[[], float] = lambda: 0.0) -> None:
        self.router = Router(utc=utc)
        self.core = self.router.core
        self.requests = 0
        self.inbox: list[tuple[str, Control]] = []
        for key in EDGES:
            entry = NodeEntry(key.node, "edge", 2, "h:1", fence_close_s=FENCE_S)
            self.commit(encode_command(RegisterNode(entry)))
        self.edges = [PeerKey(key.node, "edge", 2) for key in EDGES]
        self.pass_time(FENCE_S + 1.0)  # ends the service of incarnations from before the election
        self.inbox.clear()

    def handle(self, *events: Any) -> RouterReady:
        ready = self.core.handle(self.router.now, list(events))
        self.inbox += [(node, decode_control(data)) for node, _, data in ready.sends]
        return ready

    def receive(self, peer: PeerKey, message: Control) -> None:
        """Process a message, and commit its proposals."""
        ready = self.handle(FrameArrived(peer, FrameKind.CONTROL, encode_control(message)))
        while ready.proposals or ready.rounds:
            events = [Applied(item.data) for item in ready.proposals]
            ready = self.handle(*events, *(RoundEnded(context, True) for context in ready.rounds))

    def commit(self, data: bytes) -> None:
        self.handle(Applied(data))

    def pass_time(self, seconds: float) -> None:
        self.router.now += seconds
        ready = self.handle()
        self.handle(*(RoundEnded(context, True) for context in ready.rounds))

    def send_request(self, verb: str, peer: PeerKey = ADMIN, order: str = "", **arguments: Any) -> int:
        self.requests += 1
        self.receive(peer, Admin(self.requests, verb, arguments, order))
        return self.requests

    def beat(self, edge: PeerKey, epoch: int, received: int | None = None) -> None:
        beat = Heartbeat(edge.node, edge.incarnation, self.router.now, self.core.machine.map.epoch)
        beat.policy_epoch, beat.policy_received = epoch, epoch if received is None else received
        beat.map_digest = self.core.machine.map.digest
        beat.policy_digest = self.core.policy.digests.digest(beat.policy_received)
        self.receive(edge, beat)

    def reply(self, request: int) -> AdminReply | None:
        found = [one for _, one in self.inbox if isinstance(one, AdminReply) and one.request == request]
        return found[-1] if found else None


def done(leader: Leader, verb: str, **arguments: Any) -> dict[str, Any]:
    reply = leader.reply(leader.send_request(verb, **arguments))
    assert reply is not None and reply.ok, reply
    assert isinstance(reply.result, dict)
    return reply.result


def test_granting_command_is_answered_at_its_commit() -> None:
    leader = Leader()
    assert done(leader, "user add", user="ann", record=HASH)["policy_epoch"] == 1
    shown = done(leader, "user show", user="ann")
    assert shown["password"] is True and HASH not in str(shown)
    assert done(leader, "user list")["users"][0]["user"] == "ann"


def test_revoking_command_is_answered_when_every_edge_acts_by_it() -> None:
    """P9 at the leader: the last acknowledgement of this epoch, not of an older one, triggers the answer."""
    leader = Leader()
    done(leader, "user add", user="ann", record=HASH)
    request = leader.send_request("user disable", user="ann")
    for edge in leader.edges[:2]:
        leader.beat(edge, 2)
    leader.beat(leader.edges[2], 1, received=2)
    assert leader.reply(request) is None
    leader.beat(leader.edges[2], 2)
    reply = leader.reply(request)
    assert reply is not None and reply.ok and reply.result["settled"]  # type: ignore[index]


def test_dead_edge_is_waited_for_until_its_fence_time_ends() -> None:
    """C4: its lease expired without proof of its end; its clients then have the fence time."""
    leader = Leader()
    done(leader, "user add", user="ann", record=HASH)
    for edge in leader.edges[:2]:
        leader.beat(edge, 1)
    request = leader.send_request("user disable", user="ann")
    for edge in leader.edges[:2]:
        leader.beat(edge, 2)
    dead = leader.edges[2]
    leader.commit(encode_command(DeclareDead(dead.node, dead.incarnation)))
    leader.pass_time(FENCE_S - 1.0)
    assert leader.reply(request) is None
    leader.pass_time(1.5)
    reply = leader.reply(request)
    assert reply is not None and reply.ok


def test_edge_that_reported_its_end_is_not_waited_for() -> None:
    leader = Leader()
    done(leader, "user add", user="ann", record=HASH)
    request = leader.send_request("user disable", user="ann")
    for edge in leader.edges[:2]:
        leader.beat(edge, 2)
    leader.receive(leader.edges[2], Leave())
    reply = leader.reply(request)
    assert reply is not None and reply.ok


def test_unsettled_command_names_awaited_nodes_and_can_be_repeated() -> None:
    """Exit code 3 after 20 s; `policy status` continues the wait, and a repeated order gets its first result."""
    leader = Leader()
    done(leader, "user add", user="ann", record=HASH)
    request = leader.send_request("user disable", order="abc", user="ann")
    leader.beat(leader.edges[0], 2)
    leader.beat(leader.edges[1], 2)
    leader.pass_time(WAIT_S + 0.1)
    reply = leader.reply(request)
    assert reply is not None and not reply.ok and reply.exit_code == 3
    assert leader.edges[2].node in reply.error and "--epoch 2" in reply.error
    status, again = (
        leader.send_request("policy status", epoch=2),
        leader.send_request("user disable", order="abc", user="ann"),
    )
    assert leader.core.policy.epoch == 2, "an order is carried out once"
    leader.beat(leader.edges[2], 2)
    for number in (status, again):
        waited = leader.reply(number)
        assert waited is not None and waited.ok and waited.result["policy_epoch"] == 2  # type: ignore[index]


def test_dry_run_changes_nothing_and_names_affected_users() -> None:
    leader = Leader()
    done(leader, "user add", user="ann", record=HASH)
    result = done(leader, "user disable", user="ann", dry_run=True)
    assert result["takes_from"] == {"users": ["ann"]} and leader.core.policy.epoch == 1
    refused = leader.reply(leader.send_request("user disable", user="nobody", dry_run=True))
    assert refused is not None and not refused.ok


LIFE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("role put", {"role": "r", "rules": [{"allow": True, "actions": 3, "filter": "a/#", "qos_max": 1}]}),
    ("group put", {"group": "g", "roles": ["r"]}),
    ("user add", {"user": "u", "roles": ["r"]}),
    ("user change", {"user": "u", "groups": ["g"]}),
    ("user password", {"user": "u", "record": HASH}),
    ("user disable", {"user": "u"}),
    ("user enable", {"user": "u"}),
    ("ban add", {"kind": "address", "value": "10.0.0.1", "for_s": 60.0}),
    ("ban del", {"kind": "address", "value": "10.0.0.1"}),
    ("revoke", {"kind": "serial", "value": "1f", "issuer": "ab" * 32}),
    ("unrevoke", {"kind": "serial", "value": "1f", "issuer": "ab" * 32}),
    ("token create", {"name": "t", "role": "viewer", "digest": DIGEST, "for_s": 60.0}),
    ("token revoke", {"name": "t"}),
    ("user delete", {"user": "u"}),
    ("group delete", {"group": "g"}),
    ("role delete", {"role": "r"}),
)


def test_every_changing_command_has_a_dry_run() -> None:
    """A dry run is answered at once and proposes nothing; the same command without it makes the next step."""
    assert {verb for verb, _ in LIFE} >= set(CHANGING)
    leader = Leader()
    for verb, arguments in LIFE:
        before = leader.core.policy.epoch
        tried = leader.reply(leader.send_request(verb, **arguments, dry_run=True))
        assert tried is not None and tried.ok and leader.core.policy.epoch == before, (verb, tried)
        leader.send_request(verb, **arguments)
        assert leader.core.policy.epoch == before + 1, verb
        for edge in leader.edges:
            leader.beat(edge, before + 1)


@pytest.mark.parametrize("verb", ["user add", "user disable", "role delete", "group put"])
def test_viewer_cannot_change_the_policy(verb: str) -> None:
    """A7: the certificate's role is checked before the arguments."""
    leader = Leader()
    reply = leader.reply(leader.send_request(verb, VIEWER, user="ann"))
    assert reply is not None and not reply.ok and "role admin" in reply.error
    assert leader.core.policy.epoch == 0


def test_leader_that_loses_leadership_ends_all_waits() -> None:
    leader = Leader()
    done(leader, "user add", user="ann", record=HASH)
    request = leader.send_request("user disable", user="ann")
    leader.handle(RoleChanged(False, "r2"))
    leader.handle()
    reply = leader.reply(request)
    assert reply is not None and reply.exit_code == 4 and "ask again" in reply.error
    other = leader.reply(leader.send_request("user enable", user="ann"))
    assert other is not None and other.exit_code == 4 and "r2" in other.error


def _change_leader(leader: Leader) -> None:
    leader.handle(RoleChanged(False, "r2"))
    leader.handle(RoleChanged(True, "r1"))


def test_new_leader_without_deaths_waits_for_no_node() -> None:
    """C5: it has applied no death."""
    leader = Leader()
    done(leader, "user add", user="ann", record=HASH)
    _change_leader(leader)
    request = leader.send_request("user disable", user="ann")
    for edge in leader.edges:
        assert leader.reply(request) is None
        leader.beat(edge, 2)
    reply = leader.reply(request)
    assert reply is not None and reply.ok


def test_c5_new_leader_waits_for_nodes_that_died_before_its_election() -> None:
    """The fence time counts from its application of the death."""
    leader = Leader()
    done(leader, "user add", user="ann", record=HASH)
    leader.handle(RoleChanged(False, "r2"))
    leader.commit(encode_command(DeclareDead(leader.edges[0].node, leader.edges[0].incarnation)))
    leader.pass_time(FENCE_S / 2)
    leader.handle(RoleChanged(True, "r1"))
    request = leader.send_request("user disable", user="ann")
    for edge in leader.edges[1:]:
        leader.beat(edge, 2)
    leader.pass_time(FENCE_S / 2 - 0.1)
    assert leader.reply(request) is None
    leader.pass_time(0.2)
    reply = leader.reply(request)
    assert reply is not None and reply.ok


def test_c5_snapshot_counts_as_a_death_at_its_time() -> None:
    """A router that restored one assumes a death at that time, by the first clock reading after it."""
    leader = Leader()
    done(leader, "user add", user="ann", record=HASH)
    leader.handle(RoleChanged(False, "r2"))
    leader.core.restore(leader.core.capture()())
    leader.pass_time(FENCE_S)
    leader.handle(RoleChanged(True, "r1"))
    request = leader.send_request("user disable", user="ann")
    for edge in leader.edges:
        leader.beat(edge, 2)
    leader.pass_time(FENCE_S - 0.1)
    assert leader.reply(request) is None
    leader.pass_time(0.2)
    reply = leader.reply(request)
    assert reply is not None and reply.ok


def test_new_leader_does_not_refuse_before_it_applied_the_whole_log() -> None:
    """The log decides. An epoch that it may not know is not reported as settled."""
    leader = Leader()
    leader.handle(RoleChanged(False, "r2"))
    leader.handle(RoleChanged(True, "r1"))
    status = leader.send_request("policy status", epoch=1)
    reply = leader.reply(status)
    assert reply is not None and reply.exit_code == 4
    asked = FrameArrived(ADMIN, FrameKind.CONTROL, encode_control(Admin(50, "user disable", {"user": "ann"})))
    ready = leader.handle(asked)
    assert len(ready.proposals) == 1 and leader.reply(50) is None
    leader.commit(encode_policy_command(AddUser("ann", HASH)))
    leader.handle(*(Applied(item.data) for item in ready.proposals))
    for edge in leader.edges:
        leader.beat(edge, 2)
    leader.pass_time(FENCE_S + 0.1)
    reply = leader.reply(50)
    assert reply is not None and reply.ok
    refused = leader.reply(leader.send_request("user disable", user="bob"))
    assert refused is not None and refused.exit_code == 1


def test_revoked_token_is_invalid_at_once_and_only_a_current_leader_checks_tokens() -> None:
    """No router answers from a policy that may be outdated."""
    leader = Leader()
    done(leader, "token create", name="ci", role="viewer", digest=DIGEST, for_s=60.0)
    assert done(leader, "token check", digest=DIGEST)["role"] == "viewer"
    refused = leader.reply(leader.send_request("token check", VIEWER, digest=DIGEST))
    assert refused is not None and not refused.ok
    leader.handle(RoleChanged(False, "r2"))
    other = leader.reply(leader.send_request("token check", digest=DIGEST))
    leader.handle(RoleChanged(True, "r1"))
    new = leader.reply(leader.send_request("token check", digest=DIGEST))
    assert [reply and reply.exit_code for reply in (other, new)] == [4, 4]
    done(leader, "token revoke", name="ci")
    gone = leader.reply(leader.send_request("token check", digest=DIGEST))
    assert gone is not None and gone.exit_code == 1 and DIGEST not in repr(leader.inbox[-1])


def test_edge_that_misses_policy_steps_loses_its_lease() -> None:
    """Rule 7: alive but unreachable for steps."""
    leader = Leader()
    done(leader, "user add", user="ann", record=HASH)
    for edge in leader.edges:
        leader.beat(edge, 1)
    leader.send_request("user disable", user="ann")
    leader.beat(leader.edges[0], 2)
    leader.beat(leader.edges[1], 2)
    leader.pass_time(RECEIVES_S + 0.5)
    assert leader.core.counts.get("leases_stopped") == 1
    assert leader.core.leases.ending


def test_follower_gets_the_view_and_every_step() -> None:
    leader = Leader()
    edge = leader.edges[0]
    leader.receive(edge, FollowPolicy(0))
    done(leader, "role put", role="r", rules=[{"allow": True, "actions": 3, "filter": "a/#"}])
    received = [one for node, one in leader.inbox if node == edge.node and isinstance(one, PolicyPaged | PolicyStepped)]
    assert [type(one) for one in received] == [PolicyPaged, PolicyStepped]
    leader.receive(edge, FetchUsers(7, ["ann", "ann"]))
    answers = [one for _, one in leader.inbox if isinstance(one, UserRecords)]
    assert [(one.names, one.records, one.epoch) for one in answers] == [(["ann"], [None], 1)]


def test_credentials_are_in_login_answers_only() -> None:
    """An edge that authorizes its clients again gets roles and limits of thousands, and no record."""
    leader = Leader()
    done(leader, "user add", user="ann", record=HASH)
    edge = leader.edges[0]
    users = []
    for question in (FetchUsers(7, ["ann"]), AskCredentials(8, "ann")):
        leader.receive(edge, question)
        (answer,) = [one for _, one in leader.inbox if isinstance(one, UserRecords) and one.request == question.request]
        assert answer.names == ["ann"] and answer.records[0] is not None
        users.append(msgspec.msgpack.decode(answer.records[0], type=User))
    assert [user.record for user in users] == ["", HASH]
    assert msgspec.structs.replace(users[1], record="", verifier="") == users[0]


def test_proposal_with_unknown_result_is_answered_as_such() -> None:
    leader = Leader()
    leader.requests += 1
    question = Admin(leader.requests, "user add", {"user": "ann"})
    ready = leader.handle(FrameArrived(ADMIN, FrameKind.CONTROL, encode_control(question)))
    leader.handle(ProposalFailed(ready.proposals[0].number, ""))
    reply = leader.reply(leader.requests)
    assert reply is not None and reply.exit_code == 4
