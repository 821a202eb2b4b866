"""The leader removes expired records by itself: after a delay, in batches, and only with all commits applied."""

from access.limits.bans import Ban
from access.policy.commands import AddBan, Prune, PutRole, Revoke, encode_policy_command
from access.policy.machine import PolicyMachine
from access.policy.records import Revoked
from access.policy.step import RECORDS_MAX
from router.core import RouterCore
from router.events import Applied, RoleChanged
from router.policy.pruning import CHECK_S, REPEAT_S, PruneSchedule
from router.settings import RouterLimits
from tests.router.policy.test_policy_service import Leader
from wire.messages.cluster_map import NodeEntry

LATE_S = 3_600.0


def test_record_is_removed_an_hour_after_its_end() -> None:
    """A clock that is fast by less than an hour ends no revocation early."""
    clock = [1_000_000.0]
    machine = PolicyMachine()
    machine.apply(Revoke(Revoked("token", "j", "", 1_000_100.0)))
    pruning = PruneSchedule(lambda: clock[0], LATE_S)
    assert pruning.due(0.0, machine.tables) is None
    clock[0] = 1_000_100.0 + LATE_S - 1.0
    assert pruning.due(0.0, machine.tables) is None and pruning.next_deadline() == CHECK_S
    assert pruning.due(CHECK_S, machine.tables) is None
    clock[0] += 2.0
    assert pruning.due(CHECK_S + 0.1, machine.tables) is None, "not looked at yet"
    prune = pruning.due(2 * CHECK_S, machine.tables)
    assert prune is not None and 1_000_100.0 <= prune.now_utc <= clock[0] - LATE_S
    assert pruning.due(2 * CHECK_S + REPEAT_S, machine.tables) is not None, "it was not committed: asked again"
    assert machine.apply(prune).step is not None
    assert pruning.due(9 * CHECK_S, machine.tables) is None


def test_router_without_a_clock_prunes_nothing() -> None:
    machine = PolicyMachine()
    machine.apply(AddBan(Ban("user", "ann", 1.0)))
    assert PruneSchedule(lambda: 0.0, LATE_S).due(0.0, machine.tables) is None


def test_leader_prunes_in_batches_and_followers_apply() -> None:
    """All expired records are removed in steps of 64; a follower proposes nothing."""
    utc = [LATE_S]
    leader = Leader(utc=lambda: utc[0])
    follower = RouterCore(NodeEntry("r2", "router", 1, "h:1"), RouterLimits(), utc=lambda: utc[0])
    data = [encode_policy_command(AddBan(Ban("client_id", f"c{at}", 100.0))) for at in range(150)]
    data.append(encode_policy_command(AddBan(Ban("user", "ann"))))
    for entry in data:
        leader.commit(entry)
        follower.handle(1.0, [Applied(entry)])
    bans = leader.core.policy.machine.tables.bans
    leader.pass_time(CHECK_S)
    assert len(bans) == 151
    utc[0] = LATE_S + 101.0
    left = []
    for _ in range(20):
        leader.router.now += REPEAT_S
        ready = leader.handle()
        assert not follower.handle(leader.router.now, []).proposals
        prunes = [item for item in ready.proposals if isinstance(item.command, Prune)]
        assert len(prunes) <= 1
        for item in prunes:
            leader.commit(item.data)
            follower.handle(leader.router.now, [Applied(item.data)])
            left.append(len(bans))
    assert left == [151 - RECORDS_MAX, 151 - 2 * RECORDS_MAX, 1]
    assert follower.policy.machine.snapshot() == leader.core.policy.machine.snapshot()


def test_leader_with_unapplied_commits_prunes_nothing() -> None:
    """It may not know of a ban that was prolonged."""
    leader = Leader(utc=lambda: 1e6)
    leader.commit(encode_policy_command(AddBan(Ban("user", "ann", 5.0))))
    leader.handle(RoleChanged(False, "r2"))
    leader.handle(RoleChanged(True, "r1"))
    leader.router.now += CHECK_S  # its round has not ended
    assert not [item for item in leader.handle().proposals if isinstance(item.command, Prune)]
    leader.pass_time(REPEAT_S)
    leader.router.now += CHECK_S
    assert [item for item in leader.handle().proposals if isinstance(item.command, Prune)]
    assert leader.core.policy.machine.apply(PutRole("r")).step is not None
