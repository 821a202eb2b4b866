"""Traces at a storage node: what becomes of marked messages in its partitions, and of entries of traced sessions.

An edge marks a message by a flag of its record; a trace of clients marks sessions here, one of an origin or a topic the
entries that have it. An entry that is told of is remembered, in memory and bounded, until its client has it. A primary
that comes to an entry later, after a failover or because the trace began behind it, knows it by session, topic and
origin; whose message it was stands in no row, so a trace of its publisher ends there. Nothing here is asked while no
trace runs. Decision: docs/adr/0170-traces.md.
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

ENTRIES_MAX = 16_384  # that are told of; the oldest is forgotten
TOPIC_BYTES_MAX = 8 * 1024 * 1024  # of the topics of those
ACKS = {4: "PUBACK", 5: "PUBREC", 7: "PUBCOMP"}


class Tracing:
    """The traces of one node.

    Args:
        node: Its name.
        cluster_map: The map as this node has it.
        changed: Called after traces began or ended: which messages are plain is to be looked at again.

    Attributes:
        desk: The traces.
        active: Whether one runs.
    """

    def __init__(self, node: str, cluster_map: Callable[[], ClusterMap], changed: Callable[[], None]) -> None:
        self._told = changed
        self.active = False
        self._of_clients = self._of_topics = False
        self._entries: dict[tuple[int, int], tuple[bytes, Origin]] = {}  # (session, session_seq): topic, origin
        self._topic_bytes = 0
        self._node = node
        self._operation = (-1, 0, "")  # the last one that was told: partition, index, and that as a text
        self.desk = Tracer(node, cluster_map, self._changed)

    def _changed(self) -> None:
        self.active = bool(self.desk.running)
        self._of_clients = bool(self.desk.of_kind(CLIENT))
        self._of_topics = bool(self.desk.of_kind(TOPIC))
        if not self.active:
            self._entries.clear()
            self._topic_bytes = 0
        self._told()

    # --- marks

    def wants_session(self, session: DurableSession) -> bool:
        """Return whether a trace names the client of a session."""
        return self._of_clients and self.desk.wants_client(session.client_id, "")

    def wants(self, message: PublishMessage, origin: Origin) -> bool:
        """Return whether what becomes of a message is told."""
        return self.active and (message.traced or self.desk.wants_origin(origin))

    def is_told(self, session: DurableSession, entry: QueueEntry) -> bool:
        """Return whether what becomes of an entry is told, and remember it from here on."""
        if (session.number, entry.session_seq) in self._entries:
            return True
        origin = entry.origin_kind, entry.origin_a, entry.origin_b
        named = self._of_topics and self.desk.wants_topic(self.desk.text(entry.topic))
        if named or self.wants_session(session) or self.desk.wants_origin(origin):
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

    def known_of(self, session: DurableSession, session_seq: int) -> tuple[bytes, Origin]:
        """Return topic and origin of an entry that is told of, b"" of another one."""
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
        """Take a message of QoS 1 that is queued and leaves at once; of an unmarked one only that it leaves is told."""
        self._remember((session.number, session_seq), topic, origin)
        where = session.client_id, "", self.desk.text(topic)
        numbers = 1, session.number, session_seq, partition
        if marked:
            self.desk.note("queued", origin, *where, -1, *numbers, "", "sent at once", b"", True)
        self.desk.note("pushed", origin, *where, packet, *numbers, "", session.edge, b"", True)

    def queued(self, partition: int, session: DurableSession, entry: QueueEntry, origin: Origin) -> None:
        """An entry of a told message is appended to a queue."""
        self._remember((session.number, entry.session_seq), entry.topic, origin)
        self._note("queued", partition, session, entry.session_seq, -1, entry.qos, "", f"depth {session.queued}")

    def committed(
        self, partition: int, commit_index: int, topic: bytes, origin: Origin, replicas: Iterable[str]
    ) -> None:
        """Every change that a told message made is committed on every copy that counts: here, and at the replicas."""
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
        """An entry goes to the client's edge."""
        self._note(
            "pushed", partition, session, entry.session_seq, flight.packet_identifier, entry.qos, "", session.edge
        )

    def pushed_qos0(self, partition: int, session: DurableSession, message: PublishMessage, origin: Origin) -> None:
        """A message of QoS 0 goes to the client's edge, or to nobody."""
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
        """The client acknowledged an entry."""
        if not self.active:
            return
        reason = f"{reason_code:#04x}" if reason_code else ""
        self._note("acked", partition, session, session_seq, -1, -1, reason, ACKS.get(packet_type, ""))
        if packet_type != 5 or reason_code >= FAILURE:  # PUBREC is half of a flow
            self._forget((session.number, session_seq))

    def noted(
        self, partition: int, event: str, reason: str, client_id: str, topic: bytes, origin: Origin, detail: str
    ) -> None:
        """Take what the journal is told: drops and refusals."""
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
        topic, origin = self.known_of(session, session_seq)
        where = session.client_id, "", self.desk.text(topic), packet, qos, session.number, session_seq, partition
        self.desk.note(stage, origin, *where, reason, detail, b"", True)
