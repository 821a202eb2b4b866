"""Schedules B1 to B5 and C5 (leases, suspends, stops) played by whole clusters; each is named after its schedule."""

from dataclasses import replace

from tests.simulation.scene import EPHEMERAL, Scene
from tests.simulation.schedule_options import PATIENT
from tests.simulation.sim_client import ClientOptions


def test_b1_lease_granted_while_the_death_is_pending() -> None:
    scene = Scene(routers=3, edges=2, jitter_s=0.0)
    leader = scene.leader()
    routers = ("r1", "r2", "r3")
    publisher = scene.client("publisher", "e1", EPHEMERAL)
    scene.publish(publisher, "t/x", "before")
    for other in routers:  # a quorum round takes long, and a heartbeat just before the end waits for it
        scene.network.slow[leader, other] = 0.03  # and the death is committed after it
    for other in routers:
        scene.network.jam("e1", other)
    leases = scene.cluster.router(leader).core.leases
    incarnation = ("e1", scene.cluster.edge("e1").incarnation)
    scene.until(lambda: leases.remaining_s(scene.cluster.router(leader).clock(), incarnation) < 0.0375)
    for other in routers:
        scene.network.release("e1", other)
    for other in routers:
        if other != leader:
            scene.cut("e1", other)  # no other node informs it of its death
    scene.until(
        lambda: scene.is_dead("e1") or leases.remaining_s(scene.cluster.router(leader).clock(), incarnation) > 0.5
    )
    scene.cut("e1", leader)
    subscriber = scene.client("subscriber", "e2", PATIENT)
    subscriber.subscribe("t/x", 1)
    scene.until(lambda: subscriber.subscribed, 10.0)
    publisher.publish("t/x", "after", 1)
    scene.run(1.0)
    for other in routers:
        scene.heal("e1", other)
    scene.judge()  # a lost acknowledged message would break the subscribe barrier


def test_b2_edge_is_stopped_with_a_publish_in_its_socket() -> None:
    scene = Scene(edges=2)
    publisher = scene.client("publisher", "e1", PATIENT)
    scene.publish(publisher, "t/x", "before")
    subscriber = scene.client("subscriber", "e2", PATIENT)
    scene.cluster.nodes["e1"].pause()
    scene.network.jam("r1", "e1")  # no node informs it of its death
    subscriber.subscribe("t/x", 1)
    scene.until(lambda: subscriber.subscribed, 10.0)  # e1's lease has expired
    publisher.publish("t/x", "to-a-stopped-edge", 1)
    scene.run(0.1)
    scene.cluster.nodes["e1"].resume()
    scene.run(1.0)
    scene.network.release("r1", "e1")
    scene.judge()  # a lost acknowledged message would break the subscribe barrier


def test_b3_edge_wakes_from_a_suspend() -> None:
    scene = Scene(edges=2)
    publisher = scene.client("publisher", "e1", PATIENT)
    scene.publish(publisher, "t/x", "before")
    subscriber = scene.client("subscriber", "e2", PATIENT)
    lease = scene.cluster.edge("e1").core.lease
    until = lease.lease_until
    scene.until(lambda: lease.lease_until > until)  # just renewed
    scene.cluster.nodes["e1"].suspend()
    subscriber.subscribe("t/x", 1)
    scene.until(lambda: subscriber.subscribed, 10.0)  # e1's lease has expired
    scene.run(5.0)
    scene.cut("e1", "r1")  # so that it does not learn it at once
    publisher.publish("t/x", "to-a-sleeping-edge", 1)
    scene.run(0.1)
    scene.cluster.nodes["e1"].wake()
    scene.run(1.0)
    scene.heal("e1", "r1")
    scene.judge()


def test_b4_new_incarnation_without_proof_waits_for_the_old_lease() -> None:
    scene = Scene(edges=2)
    killed_at = scene.cluster.scheduler.now
    scene.kill("e1")
    scene.start("e1", proof=False)
    scene.until(lambda: scene.cluster.edge("e1").core.node.has_lease(), 10.0)
    assert scene.cluster.scheduler.now - killed_at >= scene.cluster.knobs.lease_s * 0.7
    scene.kill("e1")
    killed_at = scene.cluster.scheduler.now
    scene.start("e1")
    scene.until(lambda: scene.cluster.edge("e1").core.node.has_lease(), 1.0)


def test_b5_fenced_edge_sends_no_suback_and_disconnects_its_clients() -> None:
    scene = Scene(routers=3, edges=2)
    leader = scene.leader()
    owner = next(name for name in ("r1", "r2", "r3") if name != leader)
    topic = scene.topic_of(owner)
    subscriber = scene.client("subscriber", "e2", PATIENT)
    others = [name for name in scene.cluster.nodes if name not in ("e2", owner)]
    scene.isolate("e2", others)  # with the owner of the shard, which is cut off as well
    scene.isolate(owner, others)
    scene.until(lambda: scene.is_dead("e2"), 10.0)
    subscriber.subscribe(topic, 1)
    scene.run(2.0)
    assert not subscriber.subscribed
    scene.until(lambda: not subscriber.connected, 15.0)


def test_b6_edge_that_wakes_after_its_fence_serves_no_client() -> None:
    """It wakes without a link to the routers, with QoS 0 in its socket: its policy may be outdated."""
    scene = Scene(edges=2)
    publisher = scene.client("publisher", "e1", PATIENT)
    subscriber = scene.client("subscriber", "e1", PATIENT, "t/x")
    scene.publish(publisher, "t/x", "before")
    scene.cluster.nodes["e1"].suspend()
    publisher.publish("t/x", "late", 0)
    scene.until(lambda: scene.is_dead("e1"), 10.0)
    scene.run(scene.cluster.edge("e1").core.limits.fence_close_s)
    scene.isolate("e1", [name for name in scene.cluster.nodes if name != "e1"])
    scene.cluster.nodes["e1"].wake()
    scene.run(1.0)
    assert subscriber.received == ["before"]
    assert not publisher.connected


def test_c5_takeover_from_an_edge_paused_within_its_lease() -> None:
    scene = Scene(edges=2)
    old = scene.client("old", "e1", replace(ClientOptions(), resend=False), client_id="same")
    subscriber = scene.client("subscriber", "e2", None, "t/x")
    scene.publish(old, "t/x", "before")
    scene.cluster.nodes["e1"].pause()
    old.publish("t/x", "in-a-socket", 1)
    new = scene.cluster.client("new", replace(ClientOptions(), resend=False), "same")
    scene.connect(new, "e2", 1.0)
    scene.publish(new, "t/x", "after")
    scene.cluster.nodes["e1"].resume()
    scene.run(2.0)
    assert subscriber.received == ["before", "after"]
    scene.judge()
