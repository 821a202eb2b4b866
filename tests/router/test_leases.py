"""Leases at the leader: answers to heartbeats, and certain expiry."""

import random

from router.map.leases import LeaseTable
from wire.messages.cluster_map import ClusterMap, NodeEntry, NodeState
from wire.messages.nodes import Heartbeat


def one_edge(state: str = NodeState.ACTIVE, incarnation: int = 1) -> ClusterMap:
    entry = NodeEntry("e1", "edge", incarnation, "host:1", state=state)
    return ClusterMap(cluster="c", epoch=5, nodes={"e1": entry})


def table(now: float = 0.0) -> LeaseTable:
    leases = LeaseTable(2.0, 0.1)
    leases.begin(now, one_edge())
    return leases


def beat(epoch: int = 5, incarnation: int = 1) -> Heartbeat:
    return Heartbeat("e1", incarnation, 0.0, epoch)


def test_heartbeat_is_answered_by_a_round_that_began_after_it() -> None:
    """All queued heartbeats share a round, but never a later one."""
    leases = table()
    leases.add_heartbeat("e1", beat())
    first = leases.next_round()
    assert first is not None
    leases.add_heartbeat("e1", beat())
    assert [granted for _, _, granted in leases.round_done(1.0, first, one_edge())] == [True]
    second = leases.next_round()
    assert second is not None and second != first
    assert len(leases.round_done(1.1, second, one_edge())) == 1
    assert leases.next_round() is None


def test_repeated_heartbeats_of_an_incarnation_are_one() -> None:
    """Regression: every heartbeat of a stolen certificate was stored until a round ended.

    Data of an incarnation without a lease is dropped when another one of its node sends a heartbeat.
    """
    leases = table()
    for number in range(1_000):
        leases.add_heartbeat("e1", Heartbeat("e1", 1, float(number), 5))
    first = leases.next_round()
    assert first is not None
    assert [beat.sent_at for _, beat, _ in leases.round_done(1.0, first, one_edge())] == [999.0]
    for incarnation in range(2, 50):
        leases.add_heartbeat("e1", Heartbeat("e1", incarnation, 0.0, 5, sizes={0: (1, incarnation)}))
    assert [bool(leases.sizes(("e1", incarnation))) for incarnation in (2, 48, 49)] == [False, False, True]
    assert leases.acknowledged(("e1", 1)) == 5


def test_lease_counts_from_the_answer_plus_a_margin() -> None:
    """It ends two seconds and a tenth after the round, not after the heartbeat."""
    leases = table()
    leases.add_heartbeat("e1", beat())
    context = leases.next_round()
    assert context is not None
    leases.round_done(1.5, context, one_edge())
    assert leases.expired(3.59, one_edge()) == []
    assert leases.expired(3.6, one_edge()) == [("e1", 1)]
    assert leases.expired(9.0, one_edge()) == []  # once


def test_failed_round_answers_no_heartbeat() -> None:
    leases = table()
    leases.add_heartbeat("e1", beat())
    context = leases.next_round()
    assert context is not None
    leases.round_failed(context)
    assert leases.round_done(1.0, context, one_edge()) == []


def test_new_leader_counts_every_lease_from_its_election() -> None:
    """It does not know which leases its predecessor granted."""
    leases = table(now=10.0)
    assert not leases.has_certainly_expired(12.0, ("e1", 1))
    assert leases.has_certainly_expired(12.1, ("e1", 1))


def test_stopped_lease_is_not_renewed() -> None:
    """Its heartbeats are answered without a grant, one node at a time."""
    leases = table()
    leases.stop(("e1", 1))
    assert leases.ending
    leases.add_heartbeat("e1", beat())
    context = leases.next_round()
    assert context is not None
    assert [granted for _, _, granted in leases.round_done(1.0, context, one_edge())] == [False]
    assert leases.expired(2.1, one_edge()) == [("e1", 1)]
    leases.retain_live(one_edge(incarnation=2))
    assert not leases.ending


def test_epoch_settles_after_every_live_node_acknowledged_it() -> None:
    """Dead nodes do not count."""
    leases = table()
    assert leases.settled_epoch(one_edge()) == 0
    leases.add_heartbeat("e1", beat(epoch=4))
    assert leases.settled_epoch(one_edge()) == 4
    assert leases.settled_epoch(one_edge(NodeState.DEAD)) == 5


def test_complaints_are_the_last_reports_of_live_nodes() -> None:
    """An empty list withdraws a complaint."""
    leases = table()
    leases.add_heartbeat("e1", Heartbeat("e1", 1, 0.0, 5, ["r1"]))
    assert leases.complaints(one_edge()) == {"e1": ("r1",)}
    leases.add_heartbeat("e1", beat())
    assert leases.complaints(one_edge()) == {}


def test_the_next_deadline_follows_every_change_of_the_table() -> None:
    """Against a simple model: the cached deadline is never older than the table."""
    for seed in range(200):
        rng = random.Random(seed)
        now, leases, alive = 0.0, LeaseTable(2.0, 0.25), {"e1"}
        until: dict[tuple[str, int], float] = {("e1", 1): 2.25}
        dying: set[tuple[str, int]] = set()
        leases.begin(now, live(alive, 1))
        for epoch in range(2, 60):
            now += rng.choice([0.0, 0.25, 1.0])
            one = (rng.choice(["e1", "e2", "e3"]), 1)
            verb = rng.choice(["beat", "join", "leave", "over", "failed", "look"])
            if verb == "beat" and one[0] in alive:
                leases.add_heartbeat(one[0], Heartbeat(*one, now, 1), now)
                context = leases.next_round()
                assert context is not None
                leases.round_done(now, context, live(alive, epoch))
                if one not in dying:
                    until[one] = max(until.get(one, 0.0), now + 2.25)
            elif verb == "join" and one[0] not in alive:
                alive.add(one[0])
                leases.admitted(now, one)
                until[one] = now + 2.25
            elif verb == "leave" and one[0] in alive:
                assert leases.record_end(one) == (one not in dying)
                dying.add(one)
            elif verb == "over" and one in dying:
                alive.discard(one[0])
                dying.discard(one)
                until.pop(one, None)
                leases.retain_live(live(alive, epoch))
            elif verb == "failed" and one in dying:
                dying.discard(one)
                leases.proposal_failed(one)
            elif verb == "look":
                for name in sorted(alive):
                    until.setdefault((name, 1), now + 2.25)
                due = [(name, 1) for name in sorted(alive) if (name, 1) not in dying and until[name, 1] <= now]
                assert leases.expired(now, live(alive, epoch)) == due
                dying.update(due)
            assert leases.next_deadline() == min(
                (time for incarnation, time in until.items() if incarnation not in dying), default=float("inf")
            )


def live(names: set[str], epoch: int) -> ClusterMap:
    entries = {name: NodeEntry(name, "edge", 1, "host:1", state=NodeState.ACTIVE) for name in names}
    return ClusterMap(cluster="c", epoch=epoch, nodes=entries)
