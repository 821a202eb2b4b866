"""Traces at a storage node: what becomes of marked messages in its partitions, and of entries of traced sessions.

An edge marks a message by a flag of its record; a trace of clients marks sessions here, one of an origin the entries
that have it. An entry that is told of is remembered, in memory and bounded, until its client has it: another primary
tells nothing of it. Nothing here is asked while no trace runs. Decision: docs/adr/0170-traces.md.
"""

from collections.abc import Callable

from mqtt.reasons import FAILURE
from storage.state.durable_sessions import DurableSession, InFlight
from storage.state.rows import Entry
from wire.looks.trace_desk import TraceDesk
from wire.looks.traces import CLIENT, NO_ORIGIN, Origin
from wire.messages.batches import PublishMessage
from wire.messages.cluster_map import ClusterMap

__all__ = ["Tracing"]

ENTRIES_MAX = 16_384  # that are told of; the oldest is forgotten
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
        self._of_clients = False
        self._entries: dict[tuple[int, int], tuple[bytes, Origin]] = {}  # (session, session_seq): topic, origin
        self.desk = TraceDesk(node, cluster_map, self._changed)

    def _changed(self) -> None:
        self.active = bool(self.desk.running)
        self._of_clients = bool(self.desk.of_kind(CLIENT))
        if not self.active:
            self._entries.clear()
        self._told()

    # --- marks

    def wants_session(self, session: DurableSession) -> bool:
        """Return whether a trace names the client of a session."""
        return self._of_clients and self.desk.wants_client(session.client_id, "")

    def wants(self, message: PublishMessage, origin: Origin) -> bool:
        """Return whether what becomes of a message is told."""
        return self.active and (message.traced or self.desk.wants_origin(origin))

    def is_told(self, session: DurableSession, entry: Entry) -> bool:
        """Return whether what becomes of an entry is told, and remember it from here on."""
        if (session.number, entry.session_seq) in self._entries:
            return True
        origin = entry.origin_kind, entry.origin_a, entry.origin_b
        if self.wants_session(session) or self.desk.wants_origin(origin):
            self._remember(session, entry, origin)
            return True
        return False

    def _remember(self, session: DurableSession, entry: Entry, origin: Origin) -> None:
        self._entries[session.number, entry.session_seq] = entry.topic, origin
        if len(self._entries) > ENTRIES_MAX:
            del self._entries[next(iter(self._entries))]

    def known_of(self, session: DurableSession, session_seq: int) -> tuple[bytes, Origin]:
        """Return topic and origin of an entry that is told of, b"" of another one."""
        return self._entries.get((session.number, session_seq), (b"", NO_ORIGIN))

    # --- events

    def queued(self, partition: int, session: DurableSession, entry: Entry, origin: Origin) -> None:
        """An entry of a told message is appended to a queue."""
        self._remember(session, entry, origin)
        self._note("queued", partition, session, entry.session_seq, qos=entry.qos, detail=f"depth {session.queued}")

    def committed(self, partition: int, commit_index: int, topic: bytes, origin: Origin) -> None:
        """Every change that a told message made is committed on every copy that counts."""
        self.desk.note(
            "committed",
            origin,
            topic=topic.decode("utf-8", "replace"),
            partition=partition,
            detail=f"operation {commit_index}",
            marked=True,
        )

    def pushed(self, partition: int, session: DurableSession, entry: Entry, flight: InFlight) -> None:
        """An entry goes to the client's edge."""
        detail = f"to {session.edge}"
        self._note("pushed", partition, session, entry.session_seq, flight.packet_identifier, entry.qos, detail=detail)

    def pushed_qos0(self, partition: int, session: DurableSession, message: PublishMessage, origin: Origin) -> None:
        """A message of QoS 0 goes to the client's edge, or to nobody."""
        self.desk.note(
            "pushed" if session.edge else "dropped",
            origin,
            session.client_id,
            topic=message.topic.decode("utf-8", "replace"),
            qos=0,
            session=session.number,
            partition=partition,
            reason="" if session.edge else "not connected, QoS 0",
            detail=f"to {session.edge}" if session.edge else "",
            payload=message.payload[: self.desk.payload_bytes],
            marked=True,
        )

    def acked(
        self, partition: int, session: DurableSession, session_seq: int, packet_type: int, reason_code: int
    ) -> None:
        """The client acknowledged an entry."""
        reason = f"{reason_code:#04x}" if reason_code else ""
        self._note("acked", partition, session, session_seq, reason=reason, detail=ACKS.get(packet_type, ""))
        if packet_type != 5 or reason_code >= FAILURE:  # PUBREC is half of a flow
            self._entries.pop((session.number, session_seq), None)

    def noted(
        self, partition: int, event: str, reason: str, client_id: str, topic: bytes, origin: Origin, detail: str
    ) -> None:
        """Take what the journal is told: drops and refusals."""
        stage = {"drop": "dropped", "refused": "refused"}.get(event, "")
        if stage:
            text = topic.decode("utf-8", "replace")
            self.desk.note(
                stage, origin, client_id, topic=text, partition=partition, reason=reason, detail=detail, marked=True
            )

    def _note(
        self,
        stage: str,
        partition: int,
        session: DurableSession,
        session_seq: int,
        packet: int = -1,
        qos: int = -1,
        *,
        reason: str = "",
        detail: str = "",
    ) -> None:
        topic, origin = self.known_of(session, session_seq)
        self.desk.note(
            stage,
            origin,
            session.client_id,
            topic=topic.decode("utf-8", "replace"),
            packet=packet,
            qos=qos,
            session=session.number,
            seq=session_seq,
            partition=partition,
            reason=reason,
            detail=detail,
            marked=True,
        )
