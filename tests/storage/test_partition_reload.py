"""Random operations, then a crash: the state loaded from the rows equals the former state in memory.

Hypothesis chooses the operations; a plain model has the messages that each session must have received, in order and
once.
"""

from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from storage.hosting.hosted_partition import HostedPartition
from tests.storage.scripted_edge import Connection, Edge
from tests.storage.storage_cluster import Cluster, with_settings
from wire.messages.batches import PublishMessage
from wire.messages.sessions import RecordInbound, ReleaseInbound
from wire.messages.wills import SessionWill

CLIENTS = ("alice", "bob")
WAITING_COPY = [
    ("open", "alice", 100, False),
    ("subscribe", "alice", "$share/g/a/b"),
    ("close", "alice", False),
    ("pick", 1),
]
FILTERS = ("a/#", "a/b", "+/b", "$share/g/a/b")

operations = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.sampled_from(CLIENTS), st.sampled_from((0, 100, 1000)), st.booleans()),
        st.tuples(st.just("close"), st.sampled_from(CLIENTS), st.booleans()),
        st.tuples(st.just("subscribe"), st.sampled_from(CLIENTS), st.sampled_from(FILTERS)),
        st.tuples(st.just("unsubscribe"), st.sampled_from(CLIENTS), st.sampled_from(FILTERS)),
        st.tuples(st.just("publish"), st.integers(0, 2), st.sampled_from((3, 400, 300_000)), st.booleans()),
        st.tuples(st.just("pick"), st.integers(1, 2)),
        st.tuples(st.just("acknowledge"), st.sampled_from(CLIENTS), st.integers(0, 5)),
        st.tuples(st.just("record"), st.sampled_from(CLIENTS), st.integers(1, 3)),
        st.tuples(st.just("release"), st.sampled_from(CLIENTS), st.integers(1, 3)),
        st.tuples(st.just("wait"), st.floats(0.1, 3.0)),
        st.tuples(st.just("crash")),
    ),
    min_size=5,
    max_size=30,
)


def snapshot(hosted: HostedPartition) -> dict[str, Any]:
    """Return the state that rows must restore."""
    partition, delivery = hosted.partition, hosted.delivery
    sessions = {
        session.client_id: (
            session.number,
            session.owner_epoch,
            session.expiry_s,
            session.deadline,
            session.edge,
            session.window if session.edge else 0,
            sorted(session.subscriptions),
            dict(session.inbound),
            session.next_inbound,
            session.push_seq,
            session.next_seq,
            {seq: (one.packet_identifier, one.qos, one.state, one.size) for seq, one in session.inflight.items()},
            list(session.sizes),
            session.queue_bytes,
        )
        for session in partition.sessions.values()
    }
    return {
        "sessions": sessions,
        "bodies": dict(partition.body_references),
        "next": (partition.meta.next_session, partition.meta.next_body),
        "origins": delivery.origins.counters,
        "members": dict(hosted.subscriptions.members),
        "standing": set(hosted.subscriptions.registered),
        "retained": (len(hosted.retained), hosted.retained.payload_bytes),
        "wills": hosted.owners.wills.waiting(),
        "held": {
            session.client_id
            for session in partition.sessions.values()
            if hosted.owners.is_held_by(session.client_id, session.edge, session.incarnation)
        },
    }


class Run:
    """One list of operations on one partition."""

    def __init__(self) -> None:
        self.cluster = Cluster(partitions=1, settings=with_settings(queue_messages_max=6, outbound_window_max=3))
        self.count = 0

    @property
    def edge(self) -> Edge:
        """The edge of every client."""
        return self.cluster.edges["e1"]

    def connection(self, name: str) -> Connection | None:
        """Return an open connection with a durable session."""
        connection = self.edge.connections.get(name)
        return connection if connection is not None and connection.open and connection.session else None

    def apply(self, operation: tuple[Any, ...]) -> None:
        """Run one of the operations, if it is valid."""
        what, *more = operation
        edge = self.edge
        if what == "open":
            edge.open(more[0], expiry_s=more[1], will=SessionWill("w", b"x", 1, delay_s=2) if more[2] else None)
        elif what == "publish":
            qos, size, retain = more
            self.count += 1
            payload = str(self.count).encode().ljust(size, b".")
            edge.publish(PublishMessage(0, b"a/b", payload, qos, retain=retain), 0)
        elif what == "pick":
            self.count += 1
            edge.publish(PublishMessage(0, b"a/b", str(self.count).encode(), more[0], share=b"g/a/b"), 0)
        elif what == "wait":
            self.cluster.run(more[0])
        elif what == "crash":
            self.crash()
        elif (connection := self.connection(more[0])) is not None:
            self._session(what, connection, more[1])
        self.cluster.settle()

    def _session(self, what: str, connection: Connection, more: Any) -> None:
        edge = self.edge
        head = (*edge.head(0), connection.session, connection.owner_epoch)
        if what == "close":
            edge.close(connection, clean=more)
        elif what == "subscribe":
            edge.subscribe(connection, more)
        elif what == "unsubscribe":
            edge.unsubscribe(connection, more)
        elif what == "record":
            edge.ask(RecordInbound(*head, more))
        elif what == "release":
            edge.ask(ReleaseInbound(*head, more))
        else:
            for push in list(connection.outbound.values())[: more + 1]:
                edge.acknowledge(push, 4 if push.qos == 1 else (7 if push.pubrel else 5))

    def crash(self) -> None:
        """Crash, read back, compare."""
        self.cluster.run(0.5)  # acknowledgements are saved lazily
        before = snapshot(self.cluster.nodes["s1"].core.partitions[0])
        self.cluster.crash_all()
        after = snapshot(self.cluster.nodes["s1"].core.partitions[0])
        for what in before:
            assert after[what] == before[what], what


@settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(operations)
@example(WAITING_COPY)  # of a group: the group's name in the row does not count for the queue's size
def test_reload_after_a_crash_restores_the_state(chosen: list[tuple[Any, ...]]) -> None:
    """Every state of sessions, queues, windows, origins, bodies, wills and retained messages survives a crash."""
    run = Run()
    for operation in chosen:
        run.apply(operation)
    run.crash()
    run.crash()
    received: dict[str, list[bytes]] = {}
    for name, connection in run.edge.connections.items():
        received[name] = [push.payload for push in connection.received if push.qos and not push.pubrel]
        assert len(set(received[name])) == len(received[name]), f"{name} has doubles on one connection"
    sessions = run.cluster.nodes["s1"].core.partitions[0].partition.sessions.values()
    for client_id, owner_epoch in [(one.client_id, one.owner_epoch) for one in sessions if one.edge]:
        run.cluster.edges["e2"].open(client_id)
        kicked = run.edge.kicked[-1]
        assert (kicked.client_id, kicked.owner_epoch) == (client_id, owner_epoch), "its holder was read back"
