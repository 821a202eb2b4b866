"""Schedules that break naive storage, QoS 2, takeover and wills, played by whole clusters; named after their schedules.

S2, S4, S7, S8, S12 concern replication alone and are in tests/storage; C2 plays S9, C1 plays S16.
"""

from dataclasses import replace

import pytest

from storage.state.settings import PartitionSettings
from tests.simulation.scene import EPHEMERAL, Scene
from tests.simulation.sim_client import ClientOptions

WITH_WILL = replace(ClientOptions(), will_topic="will/x", will_payload="will-1", will_qos=1)


def test_s1_repeat_is_not_answered_before_its_first_copy_is_committed() -> None:
    scene = Scene(edges=2, storages=3, replicas=3, min_in_sync=2, partitions=8)
    name = scene.name_on("s1", "q")
    publisher = scene.client("publisher", "e1", EPHEMERAL)
    subscriber = scene.client("subscriber", "e2", None, "t/x", client_id=name)
    subscriber.drop()
    scene.isolate("s1", ("s2", "s3"))  # no other node gets the operation
    publisher.publish("t/x", "m", 1)
    scene.run(0.05)
    scene.network.break_between("e1", "s1")  # the frame is sent again
    scene.run(0.3)
    assert publisher.publishing, "acknowledged though no other replica has it"
    scene.kill("s1", power=True)
    scene.rejoin("s1", ("s2", "s3"))
    scene.until(lambda: not publisher.publishing, 20.0)
    scene.connect(subscriber, "e2", 20.0)
    scene.until(lambda: subscriber.received == ["m"])
    scene.judge()


@pytest.mark.parametrize("wipe", [False, True])
def test_s3_primary_restarts_within_its_lease(wipe: bool) -> None:
    scene = Scene(edges=2, storages=3, replicas=3, min_in_sync=2, partitions=1)
    primary = scene.map.partitions[0].primary
    publisher = scene.client("publisher", "e1")
    subscriber = scene.client("subscriber", "e2", None, "t/x")
    subscriber.drop()
    for number in range(5):
        scene.publish(publisher, "t/x", f"m{number}")
    publisher.publish("t/x", "m5", 1)
    scene.run(0.001)
    scene.kill(primary, power=True)
    if wipe:
        scene.cluster.storage(primary).disk.wipe()
    scene.run(0.5)
    scene.start(primary)
    scene.until(lambda: not publisher.publishing, 20.0)
    scene.connect(subscriber, "e1", 20.0)
    scene.until(lambda: len(subscriber.received) >= 6)
    assert subscriber.received == [f"m{number}" for number in range(6)]
    scene.judge()


def test_s5_failing_pubrec_frees_the_identifier() -> None:
    scene = Scene(edges=2, partition=replace(PartitionSettings(), queue_messages_max=2, queue_full="refuse"))
    publisher = scene.client("publisher", "e1")
    subscriber = scene.client("subscriber", "e2", None, "t/x")
    subscriber.drop()
    scene.run(0.2)
    for number in range(4):
        scene.publish(publisher, "t/x", f"m{number}", 2)
    scene.connect(subscriber, "e2")
    scene.until(lambda: len(subscriber.received) == 2)
    publisher.session.latest_identifier = 0  # the same identifiers again
    for number in range(4):
        scene.publish(publisher, "t/x", f"n{number}", 2)
        scene.until(lambda wanted=f"n{number}": wanted in subscriber.received)
    assert subscriber.received == ["m0", "m1", "n0", "n1", "n2", "n3"]
    scene.judge()


@pytest.mark.parametrize("version", [5, 4])
def test_s5_partly_accepted_message_is_repeated_with_the_same_origin(version: int) -> None:
    scene = Scene(
        edges=2,
        storages=2,
        replicas=2,
        partitions=8,
        partition=replace(PartitionSettings(), queue_messages_max=1, queue_full="refuse"),
    )
    publisher = scene.client("publisher", "e1", replace(ClientOptions(), protocol_version=version))
    room, full = (
        scene.client(f"on-{storage}", "e2", None, "t/x", client_id=scene.name_on(storage, "q"))
        for storage in ("s1", "s2")
    )
    full.drop()
    scene.publish(publisher, "t/x", "m0", 2)
    publisher.publish("t/x", "m1", 2)
    scene.run(0.5)
    assert publisher.publishing
    assert publisher.connected == (version == 4)
    scene.connect(full, "e2")
    scene.until(lambda: full.received == ["m0"])
    publisher.drop()
    scene.connect(publisher, "e2")
    scene.until(lambda: not publisher.publishing and "m1" in full.received)
    scene.run(0.5)
    assert room.received == full.received == ["m0", "m1"]
    scene.judge()


def test_s8a_subscription_and_its_route_survive_the_primary() -> None:
    scene = Scene(edges=2, storages=2, replicas=2, min_in_sync=1, partitions=1)
    primary = scene.map.partitions[0].primary
    publisher = scene.client("publisher", "e1", EPHEMERAL)
    scene.publish(publisher, "t/x", "before")
    subscriber = scene.client("subscriber", "e2")
    scene.network.jam(primary, "r1")
    subscriber.subscribe("t/x", 1)
    scene.run(0.2)
    scene.kill(primary, power=True)
    scene.network.release(primary, "r1")
    scene.until(lambda: subscriber.subscribed, 20.0)
    scene.publish(publisher, "t/x", "after")
    scene.until(lambda: "after" in subscriber.received)
    scene.judge()


def test_s8b_time_without_a_primary_does_not_count_as_absence() -> None:
    scene = Scene(edges=2)
    watcher = scene.client("watcher", "e2", None, "will/#")
    publisher = scene.client("publisher", "e2")
    options = replace(WITH_WILL, session_expiry_interval_s=5, will_delay_interval_s=5)
    client = scene.client("client", "e1", options, "t/x")
    client.drop()
    scene.run(1.0)
    scene.publish(publisher, "t/x", "queued")
    scene.kill("s1")
    scene.run(8.0)
    client.connect("e2:2", options)
    scene.start("s1")
    scene.connect(client, "e2", 20.0, options)
    scene.until(lambda: client.received == ["queued"])
    assert client.session_present
    assert not watcher.received, "the will fired though the client came back in time"


def test_s10_pubrel_is_sent_after_pubrec_is_committed() -> None:
    scene = Scene(edges=2)
    publisher = scene.client("publisher", "e1")
    subscriber = scene.client("subscriber", "e1", None, "t/x")
    publisher.publish("t/x", "m", 2)
    scene.until(lambda: subscriber.received == ["m"])
    scene.kill("e1")
    scene.kill("s1", power=True)
    scene.start("s1", "e1")
    subscriber.drop()
    publisher.drop()
    scene.connect(subscriber, "e2", 20.0)
    scene.connect(publisher, "e2", 20.0)
    scene.publish(publisher, "t/x", "n", 2)
    scene.until(lambda: "n" in subscriber.received)
    assert subscriber.received == ["m", "n"]
    scene.judge()


@pytest.mark.parametrize("after_ms", range(0, 12, 4))
def test_s11_answers_of_an_open_are_committed(after_ms: int) -> None:
    scene = Scene(edges=2, storages=3, replicas=3, min_in_sync=2, partitions=1)
    primary = scene.map.partitions[0].primary
    publisher = scene.client("publisher", "e1", EPHEMERAL)
    subscriber = scene.client("subscriber", "e2", None, "t/x")
    subscriber.drop()
    scene.run(0.2)
    publisher.publish("t/x", "m", 2)
    scene.run(after_ms / 1000)
    subscriber.connect("e2:2")
    scene.run(0.003)
    scene.kill(primary, power=True)
    scene.connect(subscriber, "e2", 20.0)
    scene.until(lambda: not publisher.publishing and "m" in subscriber.received, 20.0)
    scene.run(1.0)
    assert subscriber.received == ["m"]
    scene.judge()


def test_s13_picked_edge_dies() -> None:
    scene = Scene(edges=3)
    publisher = scene.client("publisher", "e1")
    scene.client("durable", "e3", None, "$share/g/t/x")
    scene.client("ephemeral", "e2", EPHEMERAL, "$share/g/t/x")
    scene.publish(publisher, "t/x", "warm")
    scene.kill("e2", power=True)
    sent = []
    for number in range(6):
        publisher.publish("t/x", f"m{number}", 2)
        sent.append(f"m{number}")
    scene.until(lambda: not publisher.publishing, 20.0)
    durable = scene.cluster.clients["durable"]
    scene.until(lambda: set(sent) <= set(durable.received))
    assert len(durable.received) == len(set(durable.received))


@pytest.mark.parametrize("late", [False, True])
def test_s13_repeat_goes_to_the_picked_member(late: bool) -> None:
    """After the pick's partition has answered, or while the first copy is in flight to it."""
    scene = Scene(edges=2, storages=3, replicas=3, partitions=8)
    publisher = scene.client("publisher", "e1", client_id=scene.name_on("s1", "p"))
    members = [
        scene.client(f"of-{storage}", "e2", None, "$share/g/t/x", client_id=scene.name_on(storage, f"m{storage}"))
        for storage in ("s2", "s3")
    ]
    scene.publish(publisher, "t/x", "warm", 2)  # from here on the edges differ in their next pick
    scene.run(0.1)
    first = next(member for member in members if not member.received)
    if late:
        scene.network.jam("e1", first.process[3:])
    else:
        scene.network.jam("e1", "publisher")
    publisher.publish("t/x", "m", 2)
    scene.run(0.3)
    assert publisher.publishing
    publisher.drop()
    if not late:
        assert first.received == ["m"]
        scene.kill("e1")
    scene.connect(publisher, "e2")
    scene.until(lambda: not publisher.publishing and not publisher.session.outbound)
    if late:
        scene.network.release("e1", first.process[3:])
    scene.run(3.0)
    assert first.received == ["m"]
    scene.judge()


def test_s13_partition_without_a_member_is_replaced() -> None:
    scene = Scene(edges=2, storages=3, replicas=3, partitions=8)
    publisher = scene.client("publisher", "e1", client_id=scene.name_on("s1", "p"))
    members = [
        scene.client(f"of-{storage}", "e2", None, "$share/g/t/x", client_id=scene.name_on(storage, f"m{storage}"))
        for storage in ("s2", "s3")
    ]
    scene.publish(publisher, "t/x", "warm", 2)
    scene.run(0.1)
    leaver = next(member for member in members if not member.received)
    stayer = next(member for member in members if member is not leaver)
    scene.network.jam("e1", leaver.process[3:])  # the pick is recorded and in flight
    publisher.publish("t/x", "m", 2)
    scene.run(0.1)
    leaver.unsubscribe("$share/g/t/x")
    scene.run(0.3)
    scene.network.release("e1", leaver.process[3:])
    scene.until(lambda: not publisher.publishing and "m" in stayer.received)
    assert not leaver.received


@pytest.mark.parametrize("qos", [0, 1])
def test_s15_old_edges_publishes_arrive_late(qos: int) -> None:
    scene = Scene(edges=2, storages=2, replicas=2, partitions=8)
    topic = scene.name_on("s2", "t")
    publisher = scene.client(
        "publisher", "e1", replace(ClientOptions(), resend=False), client_id=scene.name_on("s1", "p")
    )
    subscriber = scene.client("subscriber", "e2", None, topic, client_id=scene.name_on("s2", "q"))
    scene.publish(publisher, topic, "warm")
    scene.network.jam("e1", "s2")
    publisher.publish(topic, "old", qos, retain=True)
    scene.run(0.2)
    publisher.drop()
    scene.connect(publisher, "e2")
    scene.publish(publisher, topic, "new", retain=True)
    scene.network.release("e1", "s2")
    scene.run(1.0)
    reader = scene.client("reader", "e1", EPHEMERAL, topic)
    scene.until(lambda: reader.received)
    assert subscriber.received == ["warm", "new"]
    assert reader.received == ["new"]
    scene.judge()


def test_s15_old_edges_retained_message_does_not_reach_the_next_primary() -> None:
    scene = Scene(edges=2, storages=2, replicas=2, min_in_sync=1, partitions=8)
    topic = scene.name_on("s2", "t")
    publisher = scene.client("publisher", "e1", client_id=scene.name_on("s1", "p"))
    scene.publish(publisher, topic, "warm", retain=True)
    scene.network.jam("e1", "s2")
    publisher.publish(topic, "old", 1, retain=True)
    scene.run(0.2)
    publisher.drop()
    scene.connect(publisher, "e2")
    scene.until(lambda: not publisher.publishing)
    scene.publish(publisher, topic, "new", retain=True)
    scene.kill("s2")
    scene.until(lambda: scene.is_dead("s2"))
    scene.run(1.0)
    reader = scene.client("reader", "e2", EPHEMERAL, topic)
    scene.until(lambda: reader.received)
    assert reader.received == ["new"]
    scene.judge()


def test_s17_owner_epochs_do_not_restart() -> None:
    scene = Scene(edges=2)
    one = scene.client("one", "e1", EPHEMERAL, client_id="same")
    scene.kill("s1")
    other = scene.cluster.client("other", EPHEMERAL, "same")
    other.connect("e2:2")
    scene.run(0.5)
    scene.start("s1")
    scene.connect(other, "e2", 20.0)
    scene.until(lambda: not one.connected, 10.0)
    assert other.connected


def test_s18_close_request_cannot_reach_the_old_edge() -> None:
    scene = Scene(edges=2)
    one = scene.client("one", "e1", None, client_id="same")
    scene.cut("s1", "e1")
    other = scene.cluster.client("other", None, "same")
    scene.connect(other, "e2", 10.0)
    scene.until(lambda: not one.connected, 3.0)  # by a router: no lease has ended yet
    assert other.connected


def test_s19a_takeover_does_not_lose_the_will() -> None:
    scene = Scene(edges=2)
    watcher = scene.client("watcher", "e2", None, "will/#")
    client = scene.client("client", "e1", WITH_WILL)
    scene.cut("client", "e1")  # its connection breaks, unknown to e1
    client.drop()
    scene.connect(client, "e2", 10.0, replace(WITH_WILL, will_payload="will-2"))
    scene.until(lambda: watcher.received == ["will-1"])
    scene.heal("client", "e1")
    scene.run(2.0)
    assert watcher.received == ["will-1"]
    scene.judge()


def test_s19b_takeover_does_not_fire_a_cancelled_will() -> None:
    scene = Scene(edges=2)
    watcher = scene.client("watcher", "e2", None, "will/#")
    client = scene.client("client", "e1", WITH_WILL)
    scene.network.slow["e1", "s1"] = 0.05  # the report is slower than the next CONNECT
    client.disconnect()
    scene.run(0.005)
    scene.connect(client, "e2", 10.0, replace(WITH_WILL, will_payload="will-2"))
    scene.run(2.0)
    assert not watcher.received
    scene.judge()


@pytest.mark.parametrize("victim", ["s1", "e1", "e2", "both"])
def test_s19c_will_is_handed_on(victim: str) -> None:
    scene = Scene(edges=3)
    watcher = scene.client("watcher", "e3", None, "will/#")
    live = scene.client("live", "e3", EPHEMERAL, "will/#", qos=1)
    client = scene.client("client", "e3", WITH_WILL)
    client.drop()
    scene.run(0.0015)
    victims = ("s1", "e1") if victim == "both" else (victim,)
    scene.kill(*victims)
    scene.run(0.2)
    scene.start(*victims)
    scene.until(lambda: watcher.received and live.received, 20.0)
    scene.run(3.0)
    assert watcher.received == ["will-1"]
    assert live.received == ["will-1"]


def test_s19f_will_of_an_ephemeral_client_survives_its_edge_and_storage() -> None:
    scene = Scene(edges=2)
    watcher = scene.client("watcher", "e2", None, "will/#")
    scene.client("client", "e1", replace(WITH_WILL, clean_start=True, session_expiry_interval_s=0))
    scene.kill("e1", power=True)
    scene.kill("s1", power=True)
    scene.run(0.5)
    scene.start("s1")
    scene.until(lambda: watcher.received == ["will-1"], 20.0)
    scene.run(3.0)
    assert watcher.received == ["will-1"]


def test_s19_pending_report_keeps_the_will_silent() -> None:
    """Regression (seed 23): an edge with a pending report of DISCONNECT 0x00 for the primary claimed nothing."""
    scene = Scene(edges=2)
    watcher = scene.client("watcher", "e2", None, "will/#")
    client = scene.client("client", "e1", WITH_WILL)
    scene.kill("s1")
    scene.run(0.5)
    client.disconnect()
    scene.run(1.0)
    scene.start("s1")
    scene.run(5.0)
    assert not watcher.received


def test_s20_primary_dies_with_a_subscribers_acknowledgements() -> None:
    scene = Scene(edges=2)
    publisher = scene.client("publisher", "e1")
    options = replace(ClientOptions(), receive_maximum=4)
    subscriber = scene.client("subscriber", "e2", options, "t/x")
    scene.network.jam("e2", "s1")  # its acknowledgements stay in flight
    for number in range(12):
        publisher.publish("t/x", f"m{number}", 1 + number % 2)
    scene.until(lambda: len(subscriber.received) >= 4)
    scene.run(0.3)
    scene.kill("s1", power=True)
    scene.network.release("e2", "s1")
    scene.run(0.3)
    scene.start("s1")
    scene.until(lambda: len(set(subscriber.received)) == 12 and not publisher.publishing, 20.0)
    scene.judge()


def test_s21_two_live_nodes_that_cannot_reach_each_other() -> None:
    scene = Scene(edges=2, storages=2, replicas=2, partitions=8)
    publisher = scene.client("publisher", "e1", EPHEMERAL, client_id=scene.name_on("s1", "p"))
    scene.client("subscriber", "e2", None, "t/x", client_id=scene.name_on("s2", "q"))
    scene.cut("e1", "s2")
    publisher.publish("t/x", "m", 1)
    scene.until(lambda: not publisher.connected, 20.0)  # its edge, the less important end, loses its lease
    assert scene.map.partitions[0].epoch == 1, "a storage node lost its lease too"
    scene.connect(publisher, "e2")
    scene.until(lambda: not publisher.publishing)
    scene.heal("e1", "s2")
    scene.until(lambda: scene.cluster.nodes["e1"].listens(2), 20.0)


def test_s23_numbers_of_ended_sessions_are_not_reused() -> None:
    scene = Scene(edges=2)
    subscriber = scene.client("subscriber", "e2", None, "t/x")
    publisher = scene.client("publisher", "e1")
    for life in range(4):
        for number in range(3):
            scene.publish(publisher, "t/x", f"m{life}-{number}", 2)
        publisher.disconnect()
        scene.run(0.1)
        publisher.session.forget()
        publisher.session.latest_identifier = 0
        scene.connect(publisher, "e1", 10.0, replace(ClientOptions(), clean_start=True))
    scene.until(lambda: len(subscriber.received) == 12)
    scene.judge()
