"""Orders of operators about stored sessions: the reply lists the lost state and waits for the commit."""

import pytest

from tests.storage.requests import DELAYED_WILL, fired, message
from tests.storage.scripted_edge import Connection, Edge
from tests.storage.storage_cluster import Cluster
from wire.messages.orders import NodeOrdered, OrderNode
from wire.messages.sessions import SessionOpened


def ordered(cluster: Cluster, verb: str, client_id: str, *, dry_run: bool = False, role: str = "admin") -> NodeOrdered:
    """Send an order to the primary; return its reply."""
    cluster.tell(cluster.map.partitions[0].primary, OrderNode(7, verb, client_id, dry_run, "ann", role))
    before = len(cluster.router.ordered)
    cluster.settle()
    (answer,) = cluster.router.ordered[before:]
    return answer


def away(edge: Edge, entries: int = 3) -> Connection:
    """Leave a session of a client that is not connected, with entries in its queue."""
    alice = edge.open("alice", will=DELAYED_WILL)
    edge.subscribe(alice, "a/+")
    edge.close(alice, clean=False)
    for number in range(entries):
        edge.publish(message(f"m{number}"), 0)
    edge.cluster.settle()
    return alice


@pytest.mark.parametrize("verb", ["session delete", "session expire"])
def test_session_order_deletes_all_state(verb: str) -> None:
    cluster = Cluster(partitions=1)
    edge = cluster.edges["e1"]
    away(edge)
    hosted = cluster.primary(0).core.partitions[0]
    said = ordered(cluster, verb, "alice", dry_run=True)
    assert (said.error, said.count) == ("", 1)
    assert {"entries 3", "subscriptions 1", "will w"} <= set(said.lines)
    assert "alice" in hosted.partition.by_client and not fired(cluster)
    done = ordered(cluster, verb, "alice")
    assert (done.error, done.count) == ("", 1) and set(said.lines[:5]) == set(done.lines[:5])
    cluster.settle()
    assert "alice" not in hosted.partition.by_client
    assert fired(cluster) == [b"gone"]  # its session has ended
    edge.open("alice")
    assert edge.answers(SessionOpened)[-1].session_present is False
    assert ordered(cluster, verb, "bob").error.startswith("client 'bob' has no stored session: ")


def test_second_delete_of_a_session_is_refused() -> None:
    cluster = Cluster(partitions=1)
    away(cluster.edges["e1"])
    primary = cluster.map.partitions[0].primary
    for number in (1, 2):
        cluster.tell(primary, OrderNode(number, "session delete", "alice", False, "ann", "admin"))
    cluster.settle()
    assert sorted((one.request, one.count) for one in cluster.router.ordered) == [(1, 1), (2, 0)]


def test_session_order_refuses_a_connected_client() -> None:
    cluster = Cluster(partitions=1)
    edge = cluster.edges["e1"]
    edge.open("alice")
    cluster.settle()
    said = ordered(cluster, "session delete", "alice")
    assert said.error.startswith("client 'alice' is connected at e1") and not said.count
    assert "alice" in cluster.primary(0).core.partitions[0].partition.by_client


@pytest.mark.parametrize("entries", [0, 3, 130])
def test_queue_purge_keeps_the_session(entries: int) -> None:
    """In slices; the reply lists the lost entries and leaves after all of them; later messages are delivered."""
    cluster = Cluster(partitions=1)
    edge = cluster.edges["e1"]
    away(edge, entries)
    said = ordered(cluster, "queue purge", "alice", dry_run=True)
    assert said.lines[0] == f"entries {entries}" and len(said.lines) == 2
    assert ordered(cluster, "queue purge", "alice").lines == [f"entries {entries}"]
    partition = cluster.primary(0).core.partitions[0].partition
    session = partition.by_client["alice"]
    assert (session.queued, session.queue_bytes, session.dropped) == (0, 0, entries)
    assert partition.counts.get("dropped_purged", 0) == entries
    edge.publish(message("later"), 0)
    cluster.settle()
    assert session.queued == 1 and session.subscriptions
    cluster.restart(cluster.map.partitions[0].primary)
    cluster.settle()
    assert cluster.primary(0).core.partitions[0].partition.by_client["alice"].queued == 1


def test_queue_purge_keeps_messages_in_flight() -> None:
    cluster = Cluster(partitions=1)
    edge = cluster.edges["e1"]
    alice = edge.open("alice", receive_maximum=2)
    edge.subscribe(alice, "a/+")
    for number in range(40):
        edge.publish(message(f"m{number}"), 0)
    cluster.settle()
    session = cluster.primary(0).core.partitions[0].partition.by_client["alice"]
    begun = len(session.inflight)
    assert 2 <= begun < 40
    assert ordered(cluster, "queue purge", "alice").lines == [f"entries {40 - begun}"]
    assert session.queued == begun and ordered(cluster, "queue purge", "nobody").error


@pytest.mark.parametrize("role", ["operator", "viewer", ""])
@pytest.mark.parametrize("verb", ["session delete", "session expire", "queue purge", "reload"])
def test_order_of_an_insufficient_role_is_refused(verb: str, role: str) -> None:
    """The executing node checks the role itself."""
    if (verb, role) == ("reload", "operator"):
        return  # it is authorized
    cluster = Cluster(partitions=1)
    away(cluster.edges["e1"])
    answer = ordered(cluster, verb, "alice", role=role)
    assert "role" in answer.error and not answer.count
    written = cluster.primary(0).core.placements.journal.entries[-1]
    assert (written.event, written.reason) == ("refused", "verb") and written.detail.startswith(f"{verb} by ")
    assert ordered(cluster, "session delete", "alice", dry_run=True).lines[0] == "entries 3"
