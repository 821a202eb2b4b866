"""When a verb that removes rights has returned, no node applies the old right: the leader's part, by its schedules."""

import random

from access.policy.settling import Incarnation, PolicySettling

A1, A2, B1, S1 = ("a", 1), ("a", 2), ("b", 1), ("s", 1)
FENCE_S = 10.0
LIVE = {A1: FENCE_S, B1: FENCE_S, S1: 0.0}


def leader(now: float = 0.0, epoch: int = 4) -> PolicySettling:
    settling = PolicySettling()
    settling.begin(now - FENCE_S, LIVE, FENCE_S)
    for incarnation in LIVE:
        settling.acknowledged(incarnation, epoch)
    return settling


def test_a_verb_waits_for_every_live_node_and_names_it() -> None:
    """No longer than until the last acknowledgement."""
    settling = leader()
    assert not settling.awaited(0.0, 4) and len(settling.awaited(0.0, 5)) == 3
    settling.acknowledged(A1, 5)
    settling.acknowledged(S1, 6)
    assert settling.awaited(0.0, 5) == ["b acts by policy epoch 4"]
    settling.acknowledged(B1, 5)
    settling.acknowledged(B1, 4)  # an older heartbeat that arrives later
    assert not settling.awaited(0.0, 5)


def test_c2_a_silent_death_counts_after_the_fence_time() -> None:
    """A node that proved its end, and a storage node without a lease, stop serving at once."""
    settling = leader()
    settling.ended(1.0, A1, proved=False)
    settling.ended(1.0, B1, proved=True)
    settling.ended(1.0, S1, proved=False)
    assert settling.awaited(1.0, 5) == ["a is dead, and may serve its own clients for 10.0 s"]
    assert not settling.awaited(1.0, 4)  # its acknowledged epoch counts while it still serves
    assert settling.next_deadline(1.0) == 11.0 and settling.next_deadline(11.0) == float("inf")
    assert settling.awaited(10.9, 5) and not settling.awaited(11.0, 5)


def test_c1_a_new_incarnation_has_the_epoch_of_its_place_in_the_log() -> None:
    """Registered before the command, the verb waits for it; registered after it, not."""
    settling = leader(epoch=5)
    settling.ended(0.0, A1, proved=True)
    settling.admitted(A2, FENCE_S, 4)
    assert settling.awaited(0.0, 5) == ["a acts by policy epoch 4"]
    settling.ended(0.0, A2, proved=True)
    settling.admitted(("a", 3), FENCE_S, 5)
    assert not settling.awaited(0.0, 5)


def test_c4_the_next_incarnation_does_not_answer_for_the_last() -> None:
    """It was admitted because the former one's lease expired, not because its process ended."""
    settling = leader()
    settling.ended(2.0, A1, proved=False)
    settling.admitted(A2, FENCE_S, 4)
    for incarnation in (A2, B1, S1):
        settling.acknowledged(incarnation, 5)
    settling.acknowledged(A1, 5)  # a late frame of a dead one
    assert settling.awaited(2.0, 5) == ["a is dead, and may serve its own clients for 10.0 s"]
    assert [line for line in settling.awaited(2.0, 6) if line.startswith("a acts")] == ["a acts by policy epoch 5"]
    assert not settling.may_forget(2.0, "a") and settling.may_forget(2.0, "b") and settling.may_forget(12.0, "a")


def test_c5_a_whole_map_shows_no_end_of_before() -> None:
    """Also if no map contains the dead node any more; acknowledgements start empty (C6)."""
    settling = leader()
    settling.begin(100.0, {B1: FENCE_S}, FENCE_S)
    settling.elected()
    assert len(settling.awaited(100.0, 5)) == 2 and not settling.may_forget(100.0, "a")
    settling.acknowledged(B1, 5)
    assert settling.awaited(109.9, 5) == ["nodes that died before this router began, for 0.1 s"]
    assert not settling.awaited(110.0, 5) and settling.may_forget(110.0, "a")


def test_c5_elected_leader_waits_for_applied_deaths() -> None:
    """By the time of applying them, not of its election; acknowledgements start empty."""
    settling = leader()
    settling.ended(100.0, A1, proved=False)
    settling.elected()
    assert settling.awaited(104.0, 5) == [
        "b acts by policy epoch 0",
        "s acts by policy epoch 0",
        "a is dead, and may serve its own clients for 6.0 s",
    ]
    for incarnation in (B1, S1):
        settling.acknowledged(incarnation, 5)
    assert settling.awaited(109.9, 5) and not settling.awaited(110.0, 5)


def test_a_whole_map_never_shortens_the_wait_for_one_of_before() -> None:
    settling = leader()
    settling.begin(100.0, {}, FENCE_S)
    settling.begin(101.0, {B1: 1.0}, 1.0)
    settling.elected()
    settling.acknowledged(B1, 5)
    assert settling.awaited(109.9, 5) and not settling.awaited(110.0, 5)


def test_settled_verb_leaves_no_node_with_old_right() -> None:
    """Random lifetimes of nodes, compared with the actual views and ends.

    The model's nodes apply their last epoch, serve for the fence time when silently dead, and start at the epoch of
    their registration. Leaders change; a finished wait must leave no node below the epoch.
    """
    settled = 0
    for seed in range(60):
        random_ = random.Random(seed)
        now, epoch, numbers = 0.0, 1, iter(range(1, 10_000))
        settling = PolicySettling()
        settling.begin(-FENCE_S, {}, FENCE_S)
        live: dict[Incarnation, int] = {}
        serving: dict[Incarnation, tuple[int, float]] = {}  # silently dead: its epoch, and end of serving
        for _ in range(120):
            now += random_.random() * 3
            action = random_.randrange(6)
            if action == 0 and len(live) < 4:
                node = (random_.choice("abcd"), next(numbers))
                for former in [other for other in live if other[0] == node[0]]:
                    serving[former] = live.pop(former), now + FENCE_S
                    settling.ended(now, former, proved=False)
                live[node] = epoch
                settling.admitted(node, FENCE_S, epoch)
            elif action == 1 and live:
                node = random_.choice(sorted(live))
                proved = random_.random() < 0.5
                old = live.pop(node)
                if not proved:
                    serving[node] = old, now + FENCE_S
                settling.ended(now, node, proved=proved)
            elif action == 2:
                epoch += 1
            elif action in (3, 4) and live:
                node = random_.choice(sorted(live))
                live[node] = random_.randint(live[node], epoch)
                settling.acknowledged(node, live[node])
            elif action == 5 and random_.random() < 0.1:
                settling = PolicySettling()
                settling.begin(now, dict.fromkeys(live, FENCE_S), FENCE_S)
            elif action == 5 and random_.random() < 0.3:
                settling.elected()  # a router that has applied all of this and now leads
            wanted = random_.randint(1, epoch)
            if not settling.awaited(now, wanted):
                settled += 1
                assert all(known >= wanted for known in live.values()), seed
                assert all(known >= wanted or until <= now for known, until in serving.values()), seed
    assert settled > 500
