"""P9 in whole clusters: seeds with users of the cluster, schedules of docs/revocation.md, and a watch for violations.

Each script is named after its schedule; more are in ``test_policy_schedules.py``.
"""

import pytest

from tests.simulation.edge_process import USERS
from tests.simulation.policy_scene import FENCE_S, Users
from tests.simulation.policy_work import rules_of
from tests.simulation.router_process import RaftKnobs
from tests.simulation.simulation import Mode, Options, run_seed


@pytest.mark.parametrize("seed", range(2_000, 2_004))
def test_random_seed(seed: int) -> None:
    mode: Mode = "liveness" if seed % 3 == 0 else "safety"
    result = run_seed(seed, Options(mode=mode, seconds=3.0, policy=True))
    assert not result.failures, result.failures
    assert result.verbs > 20 and result.denied


@pytest.mark.parametrize(
    ("seed", "mode"),
    [
        (400020, "safety"),  # pushes after SessionOpened to a login under repeated authorization were never sent again
        (400035, "safety"),  # a new leader refused an order by an old policy
    ],
)
def test_seed_that_failed(seed: int, mode: Mode) -> None:
    result = run_seed(seed, Options(mode=mode, seconds=12.0, policy=True))
    assert not result.failures, result.failures


def test_users_draw_from_separate_random_streams() -> None:
    """Work and faults of a seed are the same without them."""
    with_users, plain = (run_seed(1_002, Options(seconds=1.5, policy=policy)) for policy in (True, False))
    assert with_users.faults == plain.faults and with_users.works == plain.works


def test_a3_login_in_progress() -> None:
    """The hash, or the session, is pending while the user is disabled: no CONNACK 0 after the command's return."""
    for wait_s in (0.0, 0.005, 0.02, 0.05):
        users = Users(edges=2, delay_s=0.005)
        client = users.client("u", "e1")
        client.connect(f"e2:{USERS}")
        users.scene.run(wait_s)
        users.done("user disable", user="u")
        assert not client.connected
        users.scene.run(2.0)
        assert not client.connected


def test_c2_dead_edge_still_serves() -> None:
    """The command returns after the fence time of a disconnected edge, and only after u's client there is closed."""
    users = Users(routers=3, edges=2)
    client, reader = users.client("u", "e1"), users.client("v", "e1")
    reader.subscribe("t", 0)
    users.scene.until(lambda: reader.subscribed)
    client.publish("t", "first", 0)
    users.scene.until(lambda: reader.received)  # the route is cached
    users.scene.isolate("e1", ("r1", "r2", "r3", "s1", "e2"))
    verb = users.begin("user disable", user="u")
    number = 0
    while not verb.done:
        number += 1
        if client.connected:
            client.publish("t", f"{number}", 0)
        users.scene.run(0.1)
    assert number * 0.1 > FENCE_S
    assert not client.connected
    assert len(reader.received) > FENCE_S / 0.1 - 5, "QoS 0 went on until the fence"


def test_c4_next_incarnation_does_not_acknowledge_for_the_last() -> None:
    """A stopped edge is replaced without proof; the command waits for the former one's fence time."""
    users = Users(routers=3, edges=2)
    users.client("u", "e1")
    users.cluster.kill("e1", power=True)
    verb = users.begin("user disable", user="u")
    users.scene.until(lambda: users.scene.is_dead("e1"), 10.0)
    dead = users.cluster.scheduler.now
    users.cluster.start("e1", proof=False)
    users.scene.until(lambda: verb.done, 60.0)
    assert users.cluster.scheduler.now - dead > FENCE_S - 0.2


def _elected(users: Users) -> None:
    """Kill the leading router, and wait for the next leader."""
    users.cluster.kill(users.scene.leader())
    users.scene.until(lambda: any(core.leads for core in users.scene.routers().values()), 10.0)


def test_c5_leader_changes_during_the_fence_time() -> None:
    """The next leader counts the fence time from its application of the death, not from later."""
    users = Users(routers=3, edges=2)
    client = users.client("u", "e1")
    users.scene.isolate("e1", ("r1", "r2", "r3"))
    verb = users.begin("user disable", user="u")
    users.scene.until(lambda: users.scene.is_dead("e1"), 10.0)
    dead = users.cluster.scheduler.now
    users.scene.run(FENCE_S / 4)
    _elected(users)
    users.disabled(verb)
    assert FENCE_S - 0.2 < users.cluster.scheduler.now - dead < FENCE_S + 1.0
    assert not client.connected
    users.judge()


def test_c5_leader_without_applied_deaths_waits_for_none() -> None:
    """A re-elected leader among live edges returns commands as before its election."""
    users = Users(routers=3, edges=2)
    client = users.client("u", "e1")
    _elected(users)
    assert users.disable() < 2.0 < FENCE_S
    assert not client.connected
    users.judge()


@pytest.mark.parametrize("by", ["snapshot", "log"])
def test_c5_restarted_leader_knows_no_earlier_end(by: str) -> None:
    """A router restarts after the death, from its snapshot or its whole log, and then leads."""
    users = Users(routers=3, edges=2, raft=RaftKnobs(snapshot_every=5 if by == "snapshot" else 10_000))
    client = users.client("u", "e1")
    users.scene.isolate("e1", ("r1", "r2", "r3"))
    verb = users.begin("user disable", user="u")
    users.scene.until(lambda: users.scene.is_dead("e1"), 10.0)
    dead = users.cluster.scheduler.now
    for number in range(12):  # a snapshot may include the death; its map does not contain the time
        users.done("role put", role=f"more-{number}", rules=rules_of("x"))
    others = [router for router in ("r1", "r2", "r3") if router != users.scene.leader()]
    for router in others:  # no eligible leader has seen the death
        users.cluster.kill(router)
        users.cluster.start(router)
    users.scene.run(1.0)
    _elected(users)
    users.disabled(verb)
    assert users.cluster.scheduler.now - dead > FENCE_S - 0.2
    assert not client.connected
    users.judge()


def test_c6_leader_dies_while_a_command_waits() -> None:
    """The next leader knows the order and restarts its wait: e2 has not received the step."""
    users = Users(routers=3, edges=2)
    client = users.client("u", "e2")
    users.cluster.nodes["e2"].pause()
    verb = users.begin("user disable", user="u")
    users.scene.run(0.3)
    users.cluster.kill(users.scene.leader())
    users.scene.run(1.2)
    assert not verb.done
    users.cluster.nodes["e2"].resume()
    users.scene.until(lambda: verb.done, 60.0)
    assert not client.connected
