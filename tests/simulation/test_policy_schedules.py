"""Schedules of docs/revocation.md beyond one core: sweeps, answers and pushes in flight, unreachable nodes.

A script creates the state of its schedule, asserts it, and lets the watch check the edges' output from the command's
return on.
"""

from dataclasses import replace
from typing import Any

import pytest

from edge.disconnected_filters import DisconnectedFilterChecks
from edge.rights import sweep
from edge.rights.sources import RuleBook, Sources
from storage.rights import filters
from tests.simulation.edge_process import USERS
from tests.simulation.network import Endpoint
from tests.simulation.policy_edge import CLOSED, quick_record
from tests.simulation.policy_scene import FENCE_S, Users
from tests.simulation.policy_work import PASSWORD, rules_of
from tests.simulation.scene import EPHEMERAL
from tests.simulation.storage_process import StorageProcess
from wire.messages.policy import PolicyPaged, PolicyStepped

PATIENT = replace(EPHEMERAL, keep_alive_s=200, silence_s=100.0)  # outlasts the stop of an edge
DURABLE = replace(EPHEMERAL, clean_start=False, session_expiry_interval_s=300)
ROUTERS = ("r1", "r2", "r3")


def crowd(users: Users, edge: str, count: int) -> None:
    """Connect more clients for the sweep; each with a subscription."""
    for number in range(count):
        users.reader("v", edge, f"crowd/{number}", f"crowd-{number}")


def test_a1_step_is_acknowledged_after_the_last_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep of many iterations: u's publishes are refused at once, its deliveries end with the sweep."""
    users = Users(edges=2)
    client, reader = users.reader("u", "e1", "for-u"), users.reader("v", "e2", "t")
    writer = users.client("v", "e2", "writer")
    crowd(users, "e1", 3)  # checked before u, which connected first
    monkeypatch.setattr(sweep, "CLIENTS_PER_ITERATION", 0)  # the sweep stops after the step
    verb = users.begin("role put", role="of-u", rules=[])
    users.scene.run(1.0)
    assert not verb.done
    writer.publish("for-u", "by the old right", 0)
    client.publish("t", "by the new rules", 0)
    users.scene.run(0.1)
    assert client.received and not reader.received
    monkeypatch.setattr(sweep, "CLIENTS_PER_ITERATION", 1)
    users.scene.until(lambda: verb.done)
    users.watch.deny("u", "role put", login=False)
    for late in range(20):
        client.publish("t", f"late{late}", late % 3)
        writer.publish("for-u", f"later{late}", 0)
        users.scene.run(0.01)
    users.judge()
    assert users.watch.checked > 5 and not [one for one in reader.received if one.startswith("late")]


def test_a4_publish_waits_for_its_route() -> None:
    """The owner of the topic's shard answers after the right is revoked: the message is refused."""
    users = Users(routers=3, edges=2)
    leader = users.scene.leader()
    owner = next(name for name in ROUTERS if name != leader)
    topic = users.scene.topic_of(owner)
    reader, client = users.reader("v", "e2", topic), users.client("u", "e1")
    users.scene.cut("e1", owner)
    for number, qos in enumerate((1, 2, 0)):
        client.publish(topic, f"waits{number}", qos)
    users.scene.run(0.1)
    assert client.publishing
    users.take_role()
    users.scene.heal("e1", owner)
    users.judge()
    assert reader.received == [] and users.watch.checked


@pytest.mark.parametrize("wait_s", [0.01, 0.1, 0.29])
def test_a5_late_success_fills_no_cache(wait_s: float) -> None:
    """A hash of the former password completes after the step: it permits no login, now or later."""
    users = Users(edges=1)
    process = users.cluster.edge("e1")
    assert process.users is not None
    process.users.hash_s = (0.3,)
    client = users.named("u")
    client.connect(f"e1:{USERS}")
    users.scene.run(wait_s)
    assert client.trying and not client.connected
    users.done("user password", user="u", record=quick_record(b"another"))
    users.watch.deny("u", "user password", login=True)
    for _ in range(5):
        users.scene.run(0.2)
        assert not client.connected
        if not client.trying:
            client.connect(f"e1:{USERS}")
    users.judge()
    users.watch.allow("u")
    users.done("user password", user="u", record=quick_record(PASSWORD))
    client.connect(f"e1:{USERS}")
    users.scene.until(lambda: client.connected, 5.0)


def test_a6_steps_come_faster_than_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep takes longer than the time between two steps, and each command still returns."""
    users = Users(edges=1)
    crowd(users, "e1", 20)
    names = [f"w{number}" for number in range(12)]
    for name in names:
        users.done("user add", user=name, record=quick_record(PASSWORD), roles=["of-u"])
    monkeypatch.setattr(sweep, "CLIENTS_PER_ITERATION", 1)
    verbs = []
    for number, _ in enumerate(names):
        rules = [{"allow": True, "actions": 31, "filter": f"only/{number}"}]
        verbs.append(users.begin("role put", role="of-u", rules=rules))
        users.scene.run(0.02)
    users.scene.until(lambda: all(verb.done for verb in verbs), 20.0)
    assert not users.operator.refusals


def test_a7_long_sweep_does_not_end_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep takes longer than 5 s: the command waits, and no client of that edge is disconnected."""
    users = Users(edges=1)
    crowd(users, "e1", 10)
    stays = users.client("v", "e1", "stays")
    users.client("u", "e1")
    began = users.cluster.scheduler.now
    monkeypatch.setattr(sweep, "CLIENTS_PER_ITERATION", 0)  # the sweep stops, as with very many clients
    verb = users.begin("role put", role="of-u", rules=[])
    users.scene.run(8.0)
    assert not verb.done
    monkeypatch.undo()
    users.scene.until(lambda: verb.done, 10.0)
    assert users.cluster.scheduler.now - began > 8.0 and stays.connected and not users.scene.is_dead("e1")


def test_b1_push_is_in_flight() -> None:
    """It left its partition with the old right, and the edge authorizes it at the write."""
    users = Users(edges=2)
    client = users.client("u", "e1", options=DURABLE)
    client.subscribe("t", 1)
    users.scene.until(lambda: bool(client.subscribed))
    writer = users.client("v", "e2")
    writer.publish("t", "before", 1)
    users.scene.until(lambda: client.received == ["before"])
    users.scene.network.jam("s1", "e1")
    writer.publish("t", "on its way", 1)
    users.scene.until(lambda: not writer.publishing)
    users.take_role()
    users.scene.network.release("s1", "e1")
    users.judge()
    assert client.received == ["before"]


@pytest.mark.parametrize("taken", [True, False])
def test_b2_will_fires_late(taken: bool) -> None:
    """FireWill is in flight when the right is revoked: the publishing edge authorizes it."""
    users = Users(edges=2)
    for edge in ("e1", "e2"):  # a listener without rules would publish the will
        users.cluster.edge(edge).core.replace_rules(RuleBook({CLOSED.name: Sources(of_cluster=True)}))
    reader = users.reader("v", "e2", "wills/#")
    options = replace(EPHEMERAL, will_topic="wills/u", will_payload="gone", will_qos=1)
    client = users.client("u", "e1", options=options)
    for edge in ("e1", "e2"):
        users.scene.network.jam("s1", edge)
    client.drop()
    users.scene.run(0.5)
    assert reader.received == []
    if taken:
        users.take_role()
    for edge in ("e1", "e2"):
        users.scene.network.release("s1", edge)
    users.judge()
    assert reader.received == ([] if taken else ["gone"])


def test_b5_view_from_a_lagging_router() -> None:
    """The only router that the edge reaches lacks the change."""
    users = Users(routers=3, edges=1)
    leader = users.scene.leader()
    lags = next(name for name in ROUTERS if name != leader)
    others = [name for name in ROUTERS if name != lags]
    client = users.client("u", "e1")
    users.scene.isolate(lags, others)
    users.disable()
    assert users.scene.routers()[lags].policy.epoch < users.scene.routers()[leader].policy.epoch
    users.scene.isolate("e1", others)
    for other in others:
        users.scene.network.break_between("e1", other)
    for _ in range(80):
        if not client.trying:
            client.connect(f"e1:{USERS}")
        users.scene.run(0.05)
        assert not client.connected
    users.scene.rejoin("e1", others)
    users.judge()


@pytest.mark.parametrize("cut_after_s", [0.0, 0.05, 0.2, 0.6])
def test_c1_restarted_edge_reads_old_pages(cut_after_s: float) -> None:
    """The next incarnation finds only the lagging router, at some point of its start."""
    users = Users(routers=3, edges=1)
    leader = users.scene.leader()
    lags = next(name for name in ROUTERS if name != leader)
    others = [name for name in ROUTERS if name != lags]
    users.scene.isolate(lags, others)
    users.cluster.kill("e1", power=True)
    users.disable()
    users.cluster.start("e1")
    users.scene.run(cut_after_s)
    users.scene.isolate("e1", others)
    client = users.named("u")
    for turn in range(25):
        if not client.trying:
            client.connect(f"e1:{USERS}")
        users.scene.run(0.2)
        assert not client.connected
        if turn == 12:
            users.scene.rejoin("e1", others)
    users.judge()
    users.scene.rejoin(lags, others)
    users.watch.allow("u")
    users.done("user enable", user="u")
    for _ in range(200):
        if not client.trying:
            client.connect(f"e1:{USERS}")
        users.scene.run(0.1)
    assert client.connected


@pytest.mark.parametrize("point", ["", "read", "flush"])
def test_c3_c8_stopped_edge_serves_no_client_when_it_resumes(point: str) -> None:
    """Stopped between iterations (C3), after its reads or before its writes (C8); no node informs it."""
    users = Users(routers=3, edges=2)
    reader, client = users.client("v", "e1", options=PATIENT), users.client("u", "e1", options=PATIENT)
    reader.subscribe("t", 0)
    users.scene.until(lambda: bool(reader.subscribed))
    client.publish("t", "first", 0)
    users.scene.until(lambda: reader.received == ["first"])
    process = users.cluster.edge("e1")
    if point:
        read = process.client_reads
        client.publish("t", "before the stop", 0)
        while process.client_reads == read:  # iterations for heartbeats get there too
            process.pause_within(point)
            users.scene.until(lambda: process.paused, 1.0)
            if process.client_reads == read:
                process.resume()
    else:
        process.pause()
    client.publish("t", "in the socket", 0)
    users.scene.isolate("e1", (*ROUTERS, "s1", "e2"))
    verb = users.begin_to_disable()
    users.disabled(verb)
    assert client.connected and reader.connected
    process.resume()
    for number in range(20):
        client.publish("t", f"late{number}", 0)
        users.scene.run(0.1)
    users.judge()
    assert reader.received == ["first"] and not client.connected


def test_c7_alive_edge_that_misses_steps() -> None:
    """An edge whose link loses every step loses its lease; the command returns when it serves no client."""
    users = Users(routers=3, edges=2)
    reader, client = users.reader("v", "e1", "t"), users.client("u", "e1")
    messages = users.cluster.edge("e1").core.messages
    hears = messages.from_router
    swallowed: list[object] = []

    def deaf(node: str, message: Any) -> None:
        if isinstance(message, PolicyStepped | PolicyPaged):
            swallowed.append(message)
        else:
            hears(node, message)

    messages.from_router = deaf  # type: ignore[method-assign]
    began = users.cluster.scheduler.now
    verb = users.begin_to_disable()
    users.disabled(verb)
    took_s = users.cluster.scheduler.now - began
    client.publish("t", "late", 0)
    users.judge()
    assert swallowed and 5.0 < took_s < 5.0 + 6.0 + 2 * FENCE_S
    assert "late" not in reader.received and not client.connected


@pytest.mark.parametrize("reads_again_s", [0.4, 5.0])
def test_a2_slow_reader_has_old_output(reads_again_s: float) -> None:
    """The command waits for written output; a client that reads too late is closed and gets none of it."""
    users = Users(edges=2)
    client, writer = users.reader("u", "e1", "t"), users.client("v", "e2")
    users.scene.run(0.1)
    process = users.cluster.edge("e1")
    process.full.add(client.host)
    for number in range(5):
        writer.publish("t", f"old{number}", 0)
    users.scene.run(0.1)
    assert not client.received
    verb = users.begin("role put", role="of-u", rules=rules_of("nothing"))
    users.scene.run(reads_again_s)
    assert verb.done == (reads_again_s > 1.0)
    if verb.done:
        users.watch.deny("u", "role put", login=False)
    process.full.clear()
    process.flush_all()
    users.scene.until(lambda: verb.done, 2.0)
    users.watch.deny("u", "role put", login=False)
    for number in range(5):
        writer.publish("t", f"late{number}", 0)
        users.scene.run(0.05)
    users.judge()
    if reads_again_s > 1.0:
        assert client.received == [] and not client.connected
    else:
        assert client.received == [f"old{number}" for number in range(5)] and client.connected


def test_b3_recheck_mark_is_lost_with_its_primary() -> None:
    """Messages queued with the old right do not leave the next primary either, and are counted as dropped."""
    users = Users(storages=2, replicas=2, edges=2, partitions=1)
    client = users.client("u", "e1", options=DURABLE)
    for topic in ("kept/x", "taken/x"):
        client.subscribe(topic, 1)
    users.scene.until(lambda: len(client.subscribed) == 2)
    client.acknowledging = False
    writer = users.client("v", "e2")
    for number in range(5):
        for topic in ("kept/x", "taken/x"):
            writer.publish(topic, f"{topic}{number}", 1)
            users.scene.until(lambda: not writer.publishing)
    users.done("role put", role="of-u", rules=rules_of("kept/#"))  # its edge confirms the remaining filters: the mark
    former = users.scene.map.partitions[0].primary
    client.drop()
    users.cluster.kill(former)
    users.scene.until(lambda: users.scene.map.partitions[0].primary != former)
    client.acknowledging = True
    written = bytearray()

    def write_down(end: Endpoint, data: bytes) -> None:
        del end
        written.extend(data)

    users.cluster.edge("e2").written = write_down  # type: ignore[method-assign]
    for _ in range(100):
        if not client.trying:
            client.connect(f"e2:{USERS}")
        users.scene.run(0.05)
    assert client.connected and client.session_present
    assert [number for number in range(5) if b"kept/x%d|" % number not in written] == [] and b"taken" not in written
    primary = users.cluster.storage(users.scene.map.partitions[0].primary)
    (hosted,) = primary.core.placements.hosted.values()
    assert hosted.partition.counts["pushes_refused"] == 5


@pytest.mark.parametrize("dies", [False, True])
def test_b6_more_filters_than_connect_reports(monkeypatch: pytest.MonkeyPatch, dies: bool) -> None:
    """Messages queued for a member without the right go to another one, also after a failover."""
    monkeypatch.setattr(filters, "TOLD_MAX", 0)
    monkeypatch.setattr(DisconnectedFilterChecks, "taken", lambda *_: None)  # ignored while u is absent
    users = Users(storages=2, replicas=2, edges=2, partitions=1)
    client = users.client("u", "e1", options=DURABLE)
    for topic_filter in ("$share/g/taken/x", "taken/y", "kept/x"):
        client.subscribe(topic_filter, 2)
    users.scene.until(lambda: len(client.subscribed) == 3)
    client.acknowledging = False
    client.drop()
    writer = users.client("v", "e2")
    for number in range(30):  # more than the window of the next connection
        writer.publish("taken/x", f"taken{number}", 1 + number % 2)
        users.scene.until(lambda: not writer.publishing)
    other = users.client("v", "e2", "other", options=DURABLE)
    other.subscribe("$share/g/taken/x", 2)
    users.scene.until(lambda: len(other.subscribed) == 1)
    users.done("role put", role="of-u", rules=rules_of("kept/#"))
    if dies:
        former = users.scene.map.partitions[0].primary
        users.cluster.kill(former)
        users.scene.until(lambda: users.scene.map.partitions[0].primary != former)
    client.acknowledging = True
    client.connect(f"e2:{USERS}")
    users.scene.until(lambda: client.connected and len(set(other.received)) == 30, 30.0)
    users.scene.run(2.0)
    assert not client.received and sorted(other.received) == sorted(f"taken{number}" for number in range(30))
    primary = users.cluster.storage(users.scene.map.partitions[0].primary)
    (hosted,) = primary.core.placements.hosted.values()
    held = [sorted(session.subscriptions) for session in hosted.partition.sessions.values()]
    assert sorted(held) == [["$share/g/taken/x"], ["kept/x"]]


def test_b4_lagging_router_answers() -> None:
    """An edge with the change asks a router without it: the returned record permits no login."""
    users = Users(routers=3, edges=1)
    lags = next(name for name in ROUTERS if name != users.scene.leader())
    others = [name for name in ROUTERS if name != lags]
    client, stays = users.named("u"), users.named("v")
    users.scene.isolate(lags, others)  # and reaches the edge
    users.disable()
    core = users.cluster.edge("e1").core
    outdated = core.counts.get("users_outdated", 0)
    for _ in range(60):
        for one in (client, stays):
            if not one.trying:
                one.connect(f"e1:{USERS}")
        users.scene.run(0.1)
        assert not client.connected
    assert core.counts.get("users_outdated", 0) > outdated and stays.connected
    users.judge()


@pytest.mark.parametrize("there", [False, True])
def test_b6_filters_of_an_earlier_connection_are_removed_from_the_partition(there: bool) -> None:
    """A stored session has them, and no edge knows them before it is resumed. Their routes are removed too.

    Args:
        there: The client is connected when the role is revoked, but has not subscribed in this connection.
    """
    users = Users(edges=2)
    client = users.client("u", "e1", options=DURABLE)
    client.subscribe("p/kept", 1)
    users.scene.until(lambda: "p/kept" in client.subscribed)
    client.drop()
    writer = users.client("v", "e2", "writer")
    if there:
        client.connect(f"e2:{USERS}")
        users.scene.until(lambda: client.connected)
    users.take_role()
    if not there:
        assert _filters(users) == ["p/kept"], "nobody judges who is not there"
        writer.publish("p/kept", "while it was away", 1)
        users.scene.run(0.2)
        client.connect(f"e2:{USERS}")
    users.scene.until(lambda: client.connected and not _filters(users))
    writer.publish("p/kept", "too late", 1)
    users.judge()
    assert not client.received


def test_b6_group_backlog_goes_to_another_member() -> None:
    """Its partition pushes it right after the resume, before the edge has the filter: it is redispatched, not lost."""
    users = Users(edges=2)
    client = users.client("u", "e1", options=DURABLE)
    client.subscribe("$share/g/p/kept", 1)
    users.scene.until(lambda: client.subscribed)
    client.drop()
    writer = users.client("v", "e2", "writer")
    payloads = [f"waits{number}" for number in range(3)]
    for payload in payloads:
        writer.publish("p/kept", payload, 1)
    users.scene.until(lambda: not writer.publishing)
    member = users.client("v", "e2", "member", options=DURABLE)
    member.subscribe("$share/g/p/kept", 1)
    users.scene.until(lambda: member.subscribed)
    users.take_role()
    assert not member.received
    client.connect(f"e1:{USERS}")
    users.scene.until(lambda: sorted(member.received) == payloads, 5.0)
    users.judge()
    assert not client.received


def _filters(users: Users) -> list[str]:
    """Return the filters of all stored sessions, and of their partitions."""
    storage = users.cluster.nodes["s1"]
    assert isinstance(storage, StorageProcess)
    found = []
    for hosted in storage.core.partitions.values():
        partition = hosted.partition
        found += [name for session in partition.sessions.values() for name in session.subscriptions]
        assert bool(partition.trie.match("p/kept")) == any(
            "p/kept" in one.subscriptions for one in partition.sessions.values()
        )
    return found
