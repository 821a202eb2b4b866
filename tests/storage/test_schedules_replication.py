"""Schedules that lose, duplicate or block messages when a rule is missing; named after their number in part S."""

from mqtt.reasons import ReasonCode
from router.map.commands import DeclareDead, PlacePartitions
from storage.replication.primary import RETRY_S
from tests.storage.replicas import assert_equal_states, heal_placement
from tests.storage.requests import message
from tests.storage.scripted_edge import Connection, Edge
from tests.storage.storage_cluster import Cluster, with_edge, with_settings
from wire.messages.batches import PublishMessage, encode_message
from wire.messages.cluster_map import PartitionEntry
from wire.messages.frames import FrameKind
from wire.messages.sessions import InboundRecorded, RecordInbound, SessionSubscribed
from wire.messages.wills import SessionWill


def three() -> tuple[Cluster, Edge]:
    """Return three nodes, three copies, two of which must be in sync, one partition; and an edge."""
    return with_edge(nodes=3, replicas=3, min_in_sync=2, partitions=1)


def subscribed(*, absent: bool = False) -> tuple[Cluster, Edge, Connection]:
    """Return the same with alice's connection, subscribed to a/#."""
    cluster, edge = three()
    alice = edge.open("alice", "a/#")
    if absent:
        edge.close(alice)
    return cluster, edge, alice


def backups(cluster: Cluster) -> list[str]:
    """Return the backups of partition 0."""
    placement = cluster.map.partitions[0]
    return [name for name in placement.in_sync if name != placement.primary]


def test_s1_repeat_is_acknowledged_after_its_original_is_committed() -> None:
    """The link flaps, the edge sends again, one backup has not synced: no acknowledgement yet."""
    cluster, edge, _ = subscribed()
    cluster.nodes[backups(cluster)[0]].disk_slow = True
    edge.publish(message("m"), 0)
    cluster.run(0.1)
    partition, again = next(iter(edge.unfinished.values()))
    cluster.send(edge.key, cluster.primary(partition).key.node, FrameKind.PUBLISH, encode_message(again))
    cluster.run(0.3)
    assert not edge.acks
    cluster.nodes[backups(cluster)[0]].disk_slow = False
    cluster.settle()
    assert len(edge.acks) == 2


def test_s2_joining_replica_has_no_gap() -> None:
    """Operations acknowledged while a replica joins are on it when the primary dies right after it is in sync."""
    cluster, edge, alice = subscribed(absent=True)
    late = backups(cluster)[1]
    cluster.kill(late)
    for number in range(20):
        edge.publish(message(str(number)), 0)
        cluster.step()
    cluster.start(late)
    other = backups(cluster)[0]
    number = 20
    while late not in cluster.map.partitions[0].in_sync:
        edge.publish(message(str(number)), 0)
        number += 1
        cluster.step()
    first = cluster.map.partitions[0].primary
    cluster.kill(other, declare=False)
    cluster.kill(first, declare=False)
    acknowledged = len(edge.acked)
    for name in (other, first):
        cluster.apply(DeclareDead(name, cluster.map.nodes[name].incarnation))
    assert cluster.map.partitions[0].primary == late
    cluster.start(first)
    heal_placement_of_two(cluster)
    cluster.settle()
    alice = edge.open("alice")
    cluster.run(2 * RETRY_S)  # a restarted replica may need two probes
    assert len(alice.received) >= min(64, acknowledged)
    assert [push.payload for push in alice.received] == [str(n).encode() for n in range(len(alice.received))]


def heal_placement_of_two(cluster: Cluster) -> None:
    """Wait until two replicas are in sync and all partitions serve."""
    end = cluster.now + 20
    while len(cluster.map.partitions[0].in_sync) < 2 or not cluster.primary(0).core.serving:
        cluster.step()
        assert cluster.now < end


def test_s3_primary_that_restarts_within_its_lease_does_not_resume() -> None:
    """(a) power: an op index is never given twice under one epoch; (b) an empty disk empties no other copy."""
    for wipe in (False, True):
        cluster, edge, _ = subscribed(absent=True)
        for number in range(10):
            edge.publish(message(str(number)), 0)
            cluster.step()
        first = cluster.map.partitions[0].primary
        epoch = cluster.map.partitions[0].epoch
        cluster.kill(first, power=True, wipe=wipe, declare=False)
        cluster.start(first)
        heal_placement(cluster, 3)
        placement = cluster.map.partitions[0]
        assert placement.primary != first and placement.epoch > epoch
        cluster.settle()
        assert len(edge.acked) == 10
        assert len(edge.open("alice").received) == 10
        cluster.run(0.3)
        assert_equal_states(cluster)


def test_s4_in_sync_set_does_not_shrink_to_the_isolated_node() -> None:
    """The primary's links to both backups are down, not those to the routers: a healthy pair continues."""
    cluster, edge, _ = subscribed()
    sick = cluster.map.partitions[0].primary
    for name in backups(cluster):
        cluster.cut(sick, name)
    tag = edge.publish(message("m"), 0)
    for _ in range(1500):
        cluster.step()
        assert len(cluster.map.partitions[0].in_sync) >= 2
        if tag in edge.acked:
            break
    placement = cluster.map.partitions[0]
    assert edge.acked == {tag: 0} and placement.primary != sick


def test_s8_deposed_primary_acknowledges_no_message() -> None:
    """A message without subscribers needs no backup: still the deposed primary must not acknowledge it."""
    cluster, edge = three()
    old = cluster.map.partitions[0].primary
    cluster.silence(old)
    node = cluster.nodes[old]
    cluster.run(2.5)  # no heartbeat was answered for a lease
    cluster.apply(DeclareDead(old, node.key.incarnation))
    lonely = PublishMessage(900, b"nobody", b"m", 1, partitions=(0,), epochs=(node.core.partitions[0].partition.epoch,))
    cluster.send(edge.key, old, FrameKind.PUBLISH, encode_message(lonely))
    cluster.run(1.0)
    assert 900 not in edge.acked


def test_s8a_subscription_and_route_survive_failover() -> None:
    """The primary dies between the commit of a subscription and RoutesAdded:

    SUBACK only after the route is registered.
    """
    cluster, edge = three()
    alice = edge.open("alice")
    cluster.router.routes_answered = False
    request = edge.subscribe(alice, "a/#", settle=False)
    cluster.run(0.2)
    asked = len(cluster.router.added)
    assert asked and request in edge.asked
    cluster.kill(cluster.map.partitions[0].primary)
    cluster.run(1.0)
    assert request in edge.asked and len(cluster.router.added) > asked
    cluster.router.routes_answered = True
    cluster.run(3.0)
    assert request not in edge.asked and edge.answers(SessionSubscribed)


def test_s8b_unserved_time_does_not_count_for_expiry() -> None:
    """Expiry and will delay of 5 s, partition not served for 60 s: the session is resumed, the will stays unfired."""
    cluster, edge = with_edge(nodes=1)
    alice = edge.open("alice", expiry_s=5, will=SessionWill("w", b"gone", delay_s=5))
    edge.close(alice, clean=False)
    cluster.kill("s1", declare=False)
    cluster.run(60.0)
    cluster.start("s1")
    edge.open("alice", expiry_s=5)
    assert edge.connections["alice"].session == alice.session and not edge.wills
    cluster.run(10.0)
    assert not edge.wills


def test_s11_open_session_sends_committed_messages_only() -> None:
    """A message that is not on every replica yet is not pushed after an open."""
    cluster, edge, _ = subscribed(absent=True)
    cluster.nodes[backups(cluster)[0]].disk_slow = True
    edge.publish(message("m", qos=2), 0)
    cluster.run(0.1)
    alice = cluster.edges["e2"].open("alice", settle=False)
    cluster.run(0.5)
    assert not alice.owner_epoch and not alice.received


def test_s12_former_primary_with_unshared_operations_takes_a_range_transfer() -> None:
    """Operations without a backup are truncated with their state; the message is stored once in the end."""
    cluster, edge, _ = subscribed(absent=True)
    edge.publish(message("0", qos=2), 0)
    cluster.settle()
    first = cluster.map.partitions[0].primary
    for name in backups(cluster):
        cluster.cut(first, name)
    for number in range(1, 4):
        edge.publish(message(str(number), qos=2), 0)
    cluster.run(0.1)
    assert len(edge.acked) == 1
    cluster.kill(first)
    for name in cluster.nodes:
        cluster.heal(first, name)
    cluster.run(0.5)
    cluster.start(first)
    heal_placement(cluster, 3)
    cluster.settle()
    cluster.run(0.3)
    assert len(edge.acked) == 4
    assert_equal_states(cluster)
    second = cluster.map.partitions[0].primary
    cluster.kill(second)
    cluster.run(0.5)
    alice = edge.open("alice")
    assert [push.payload for push in alice.received] == [b"0", b"1", b"2", b"3"]


def test_s17_owner_epochs_never_decrease() -> None:
    """Across failovers and sessions, each grant is higher than all before."""
    cluster, edge = three()
    seen = [edge.open("alice", expiry_s=0).owner_epoch]
    for _ in range(2):
        dead = cluster.map.partitions[0].primary
        cluster.kill(dead)
        cluster.run(0.5)
        seen.append(edge.open("alice", expiry_s=0).owner_epoch)
        cluster.start(dead)
        heal_placement(cluster, 3)
    edge.close(edge.connections["alice"])
    seen.append(edge.open("alice").owner_epoch)
    assert seen == sorted(set(seen))


def test_s19_will_survives_failover_and_fires_once() -> None:
    """(c) The primary dies between firing and its completion: the same origin is sent again."""
    cluster, edge = three()
    edge.open("alice", expiry_s=0, will=SessionWill("w", b"gone", 1))
    edge.answer_wills = cluster.edges["e2"].answer_wills = False
    edge.close(edge.connections["alice"], clean=False)
    cluster.run(0.2)
    cluster.kill(cluster.map.partitions[0].primary)
    cluster.run(3.0)
    for each in cluster.edges.values():
        each.answer_wills = True
        each.end_wills()
    cluster.run(3.0)
    fired = [will for each in cluster.edges.values() for will in each.wills]
    assert len(fired) == 2
    assert len({(will.partition, will.partition_epoch, will.number) for will in fired}) == 1
    count = len(fired)
    cluster.run(3.0)
    assert sum(len(each.wills) for each in cluster.edges.values()) == count


def test_s19f_will_of_an_ephemeral_client_survives_edge_and_primary() -> None:
    """A host with one edge and one storage node dies: the will is in the rows, not only in memory."""
    cluster, edge = three()
    edge.open("alice", expiry_s=0, will=SessionWill("w", b"gone", 1))
    cluster.kill(cluster.map.partitions[0].primary)
    cluster.kill_edge("e1")
    cluster.run(3.0)
    assert [will.will.payload for will in cluster.edges["e2"].wills] == [b"gone"]


def test_s20_acknowledgements_survive_failover() -> None:
    """Twenty in flight, twenty acknowledgements in flight to a dead primary: the window opens again."""
    cluster, edge = three()
    alice = edge.open("alice", "a/#", receive_maximum=20)
    for number in range(40):
        edge.publish(message(str(number)), 0)
    cluster.settle()
    assert len(alice.received) == 20
    for push in list(alice.received):
        edge.acknowledge(push, 4)
    cluster.kill(cluster.map.partitions[0].primary)
    cluster.run(1.0)
    cluster.settle()
    assert [push.payload for push in alice.received] == [str(number).encode() for number in range(40)]


def test_s22_queue_longer_than_65535_reuses_identifiers() -> None:
    """An identifier is assigned when the message enters the window, so a long queue needs no more of them."""
    cluster, edge = with_edge(partitions=1, settings=with_settings(queue_messages_max=200_000, queue_bytes_max=1 << 30))
    edge.close(edge.open("alice", "a/#"))
    for number in range(300):
        edge.publish(message(str(number), qos=2), 0)
    cluster.settle()
    alice = edge.open("alice", receive_maximum=10)
    assert [push.packet_identifier for push in alice.received] == list(range(1, 11))
    edge.acknowledge(alice.received[0], 5)
    cluster.settle()
    assert len(alice.received) == 11 and alice.received[-1].pubrel
    edge.acknowledge(alice.received[-1], 7)
    cluster.settle()
    assert alice.received[-1].packet_identifier == 11


def test_s23_inbound_counters_are_bounded_by_the_lowest_unreleased() -> None:
    """An identifier that is never released blocks new ones, which bounds the memory."""
    cluster, edge = with_edge(partitions=1, settings=with_settings(inbound_unreleased_max=4))
    alice = edge.open("alice")
    for packet_identifier in range(1, 7):
        edge.ask(RecordInbound(*edge.head(0), alice.session, alice.owner_epoch, packet_identifier))
    cluster.settle()
    answers = edge.answers(InboundRecorded)
    assert [answer.counter for answer in answers] == [1, 2, 3, 4, 0, 0]
    assert all(answer.reason_code for answer in answers[4:])


def test_s10_pubrel_waits_for_the_commit_of_pubrec() -> None:
    """One backup has not synced the PUBREC: no PUBREL yet."""
    cluster, edge, alice = subscribed()
    edge.publish(message("m", qos=2), 0)
    cluster.settle()
    cluster.nodes[backups(cluster)[0]].disk_slow = True
    edge.acknowledge(alice.received[0], 5)
    cluster.run(0.5)
    assert not any(push.pubrel for push in alice.received)
    cluster.nodes[backups(cluster)[0]].disk_slow = False
    cluster.settle()
    assert alice.received[-1].pubrel


def test_s9_message_below_the_senders_counter_is_a_repeat() -> None:
    """A delayed frame of an older edge with an origin that was released long ago is acknowledged and dropped."""
    cluster, edge = with_edge(partitions=1)
    edge.open("alice", "a/#")
    other = cluster.edges["e2"]
    for counter in (5, 6, 7):
        other.publish(PublishMessage(0, b"a/b", b"new", 2, origin_kind=1, origin_a=99, origin_b=counter), 0)
    cluster.settle()
    tag = edge.publish(PublishMessage(0, b"a/b", b"late", 2, origin_kind=1, origin_a=99, origin_b=5), 0)
    cluster.settle()
    assert edge.acked[tag] == 0 and cluster.nodes["s1"].core.partition_metrics.queued() == 3
    cluster.crash_all()
    tag = edge.publish(PublishMessage(0, b"a/b", b"late", 2, origin_kind=1, origin_a=99, origin_b=7), 0)
    cluster.settle()
    assert edge.acked[tag] == 0 and cluster.nodes["s1"].core.partition_metrics.queued() == 3


def test_loss_of_the_last_primarys_disk_recovers_from_a_backup() -> None:
    """Simulation seed 40092: both backups die, then the primary's disk is lost; a copy of a backup is whole."""
    cluster, edge, _ = subscribed(absent=True)
    for number in range(10):
        edge.publish(message(str(number)), 0)
    cluster.settle()
    assert len(edge.acked) == 10
    primary, others = cluster.map.partitions[0].primary, backups(cluster)
    for name in others:
        cluster.kill(name)
        cluster.run(1.0)
    edge.publish(message("while one is left"), 0)
    cluster.run(1.0)
    assert len(edge.acked) == 10
    cluster.kill(primary, wipe=True)
    cluster.start(primary)
    cluster.run(1.0)
    for name in others:
        cluster.start(name)
    heal_placement(cluster, 3)
    cluster.settle()
    assert len(edge.acked) == 11
    alice = edge.open("alice")
    assert [push.payload for push in alice.received] == [*(str(n).encode() for n in range(10)), b"while one is left"]
    cluster.run(0.3)
    assert_equal_states(cluster)


def test_backup_with_unacknowledged_operations_is_rebuilt() -> None:
    """A former primary returns as one of two and counts as in sync: it cannot be dropped, and cannot continue."""
    cluster, edge, _ = subscribed(absent=True)
    first, (heir, third) = cluster.map.partitions[0].primary, backups(cluster)
    cluster.kill(third)
    cluster.run(1.0)
    cluster.cut(first, heir)
    edge.publish(message("only here"), 0)
    cluster.run(0.05)
    cluster.kill(first)
    cluster.heal(first, heir)
    edge.publish(message("after"), 0)
    cluster.run(1.0)
    cluster.start(first)
    assert not edge.acked
    heal_placement_of_two(cluster)
    cluster.settle()
    assert sorted(edge.acked.values()) == [0, 0]
    alice = edge.open("alice")
    assert sorted(push.payload for push in alice.received) == [b"after", b"only here"]
    cluster.run(0.3)
    assert_equal_states(cluster)


def test_delayed_message_is_not_accepted_in_a_later_epoch_of_its_primary() -> None:
    """R14: primary X, then Z, which refuses the message, then X again: X gets the message late, after the refusal."""
    cluster, edge = with_edge(nodes=2, partitions=1, replicas=2)
    session = edge.open("c", "a/#")
    placement = cluster.map.partitions[0]
    first = placement.primary
    second = next(name for name in placement.in_sync if name != first)
    cluster.cut("e1", first)
    stuck = edge.publish(PublishMessage(0, b"a/b", b"refused", 1), 0)  # in flight to the first primary
    cluster.nodes[second].disk.full = True
    for primary in (second, first):
        now = cluster.map.partitions[0]
        cluster.apply(PlacePartitions({0: PartitionEntry(now.epoch + 1, primary, now.in_sync, now.joining)}))
        cluster.run(1.0)
        if primary == second:
            assert edge.acked == {stuck: ReasonCode.SERVER_BUSY}  # its publisher got this code
    cluster.heal("e1", first)
    cluster.settle()
    assert [push.payload for push in session.received] == []
    assert cluster.nodes[first].core.counts["publishes_of_former_times"] == 1
    sent = edge.publish(PublishMessage(0, b"a/b", b"taken", 1), 0)
    cluster.settle()
    assert edge.acked[sent] == 0 and [push.payload for push in session.received] == [b"taken"]
