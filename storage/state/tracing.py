"""Traces at a storage node: events of marked messages in its partitions, and of entries of traced sessions.

An edge marks a message by a flag of its record. A trace of clients selects sessions here; one of an origin or a topic
selects entries. A traced entry is remembered, in memory and bounded, until its client has it. A later primary, or a
trace that began later, recognises an entry by session, topic and origin. No row has the publisher, so a trace of a
publisher ends there. Without a running trace this code is not called. Decision: docs/adr/0170-traces.md.
"""

from collections.abc import Callable, Iterable

from mqtt.reasons import FAILURE
from storage.state.durable_sessions import DurableSession
from storage.state.rows import QueueEntry
from storage.state.session_window import InFlight
from wire.messages.batches import PublishMessage
from wire.messages.cluster_map import ClusterMap
from wire.queries.tracer import Tracer
from wire.queries.traces import CLIENT, NO_ORIGIN, TOPIC, Origin

__all__ = ["Tracing"]

ENTRIES_MAX = 16_384  # traced entries; the oldest is forgotten
TOPIC_BYTES_MAX = 8 * 1024 * 1024  # of the topics of traced entries
ACKS = {4: "PUBACK", 5: "PUBREC", 7: "PUBCOMP"}


class Tracing:
    """The traces of one node.

    Args:
        node: Its name.
        cluster_map: The map that this node has applied.
        changed: Called after traces began or ended: cached fast-path routes must be rebuilt.

    Attributes:
        desk: The traces.
        active: Whether a trace is running.
    """

    def __init__(self, node: str, cluster_map: Callable[[], ClusterMap], changed: Callable[[], None]) -> None:
        self._on_change = changed
        self.active = False
        self._of_clients = self._of_topics = False
        self._entries: dict[tuple[int, int], tuple[bytes, Origin]] = {}  # (session, session_seq): topic, origin
        self._topic_bytes = 0
        self._node = node
        self._operation = (-1, 0, "")  # the last traced operation: partition, index, and its text
        self.desk = Tracer(node, cluster_map, self._changed)

    def _changed(self) -> None:
        self.active = bool(self.desk.running)
        self._of_clients = bool(self.desk.of_kind(CLIENT))
        self._of_topics = bool(self.desk.of_kind(TOPIC))
        if not self.active:
            self._entries.clear()
            self._topic_bytes = 0
        self._on_change()

    # --- marks

    def is_traced_session(self, session: DurableSession) -> bool:
        """Return whether a trace includes the client of a session."""
        return self._of_clients and self.desk.wants_client(session.client_id, "")

    def wants(self, message: PublishMessage, origin: Origin) -> bool:
        """Return whether a message is traced."""
        return self.active and (message.traced or self.desk.wants_origin(origin))

    def is_traced(self, session: DurableSession, entry: QueueEntry) -> bool:
        """Return whether an entry is traced, and remember it if so."""
        if (session.number, entry.session_seq) in self._entries:
            return True
        origin = entry.origin_kind, entry.origin_a, entry.origin_b
        named = self._of_topics and self.desk.wants_topic(self.desk.text(entry.topic))
        if named or self.is_traced_session(session) or self.desk.wants_origin(origin):
            self._remember((session.number, entry.session_seq), entry.topic, origin)
            return True
        return False

    def _remember(self, key: tuple[int, int], topic: bytes, origin: Origin) -> None:
        if key in self._entries:
            self._forget(key)
        self._entries[key] = topic, origin
        self._topic_bytes += len(topic)
        while len(self._entries) > ENTRIES_MAX or self._topic_bytes > TOPIC_BYTES_MAX:
            self._forget(next(iter(self._entries)))

    def _forget(self, key: tuple[int, int]) -> None:
        topic, _ = self._entries.pop(key, (b"", NO_ORIGIN))
        self._topic_bytes -= len(topic)

    def find_entry(self, session: DurableSession, session_seq: int) -> tuple[bytes, Origin]:
        """Return topic and origin of a traced entry, b"" of another one."""
        return self._entries.get((session.number, session_seq), (b"", NO_ORIGIN))

    # --- events

    def taken(
        self,
        partition: int,
        session: DurableSession,
        session_seq: int,
        topic: bytes,
        origin: Origin,
        packet: int,
        marked: bool,
    ) -> None:
        """Trace a QoS 1 message that is queued and sent at once; of an unmarked one only the push."""
        self._remember((session.number, session_seq), topic, origin)
        where = session.client_id, "", self.desk.text(topic)
        numbers = 1, session.number, session_seq, partition
        if marked:
            self.desk.note("queued", origin, *where, -1, *numbers, "", "sent at once", b"", True)
        self.desk.note("pushed", origin, *where, packet, *numbers, "", session.edge, b"", True)

    def queued(self, partition: int, session: DurableSession, entry: QueueEntry, origin: Origin) -> None:
        """Trace that an entry of a traced message is appended to a queue."""
        self._remember((session.number, entry.session_seq), entry.topic, origin)
        self._note("queued", partition, session, entry.session_seq, -1, entry.qos, "", f"depth {session.queued}")

    def committed(
        self, partition: int, commit_index: int, topic: bytes, origin: Origin, replicas: Iterable[str]
    ) -> None:
        """Trace that all changes of a message are committed here and at the in-sync replicas."""
        if not self.active:
            return
        if (partition, commit_index) != self._operation[:2]:
            copies = ", ".join((self._node, *sorted(replicas)))
            self._operation = partition, commit_index, f"operation {commit_index} on {copies}"
        detail = self._operation[2]
        self.desk.note(
            "committed", origin, "", "", self.desk.text(topic), -1, -1, -1, -1, partition, "", detail, b"", True
        )

    def pushed(self, partition: int, session: DurableSession, entry: QueueEntry, flight: InFlight) -> None:
        """Trace that an entry is sent to the client's edge."""
        self._note(
            "pushed", partition, session, entry.session_seq, flight.packet_identifier, entry.qos, "", session.edge
        )

    def pushed_qos0(self, partition: int, session: DurableSession, message: PublishMessage, origin: Origin) -> None:
        """Trace that a QoS 0 message is sent to the client's edge, or dropped without a connection."""
        self.desk.note(
            "pushed" if session.edge else "dropped",
            origin,
            session.client_id,
            topic=self.desk.text(message.topic),
            qos=0,
            session=session.number,
            partition=partition,
            reason="" if session.edge else "not connected, QoS 0",
            detail=session.edge,
            payload=message.payload[: self.desk.payload_bytes],
            marked=True,
        )

    def acked(
        self, partition: int, session: DurableSession, session_seq: int, packet_type: int, reason_code: int
    ) -> None:
        """Trace that the client acknowledged an entry."""
        if not self.active:
            return
        reason = f"{reason_code:#04x}" if reason_code else ""
        self._note("acked", partition, session, session_seq, -1, -1, reason, ACKS.get(packet_type, ""))
        if packet_type != 5 or reason_code >= FAILURE:  # PUBREC is half of a flow
            self._forget((session.number, session_seq))

    def noted(
        self, partition: int, event: str, reason: str, client_id: str, topic: bytes, origin: Origin, detail: str
    ) -> None:
        """Trace drops and refusals that are recorded in the journal."""
        stage = {"drop": "dropped", "refused": "refused"}.get(event, "")
        if stage:
            self.desk.note(
                stage,
                origin,
                client_id,
                topic=self.desk.text(topic),
                partition=partition,
                reason=reason,
                detail=detail,
                marked=True,
            )

    def _note(
        self,
        stage: str,
        partition: int,
        session: DurableSession,
        session_seq: int,
        packet: int,
        qos: int,
        reason: str,
        detail: str,
    ) -> None:
        topic, origin = self.find_entry(session, session_seq)
        where = session.client_id, "", self.desk.text(topic), packet, qos, session.number, session_seq, partition
        self.desk.note(stage, origin, *where, reason, detail, b"", True)
