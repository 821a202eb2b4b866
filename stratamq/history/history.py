"""A parsed history: operations joined from their lines, and connections joined from operations.

Validates histories; ``checkers/`` check the guarantees.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

import msgspec

from stratamq.history.operations import FORMAT_NAME, FORMAT_VERSION, Header, HistoryRecord, Kind, OperationPhase

FOREVER_NS: Final = 2**62  # later than any record: end of an operation without an answer
EVENT_KINDS: Final = frozenset(
    {
        Kind.RECEIVE,
        Kind.RESEND,
        Kind.CLOSE,
        Kind.KILL,
        Kind.RESTART,
        Kind.FAULT,
        Kind.HEAL,
        Kind.DROPPED,
        Kind.QUIET,
        Kind.DRAINED,
    }
)
MARK_KINDS: Final = EVENT_KINDS - {Kind.RECEIVE, Kind.RESEND, Kind.CLOSE}

__all__ = [
    "FOREVER_NS",
    "ClientConnection",
    "ClientOperation",
    "HistoryError",
    "RunHistory",
    "parse_history",
    "read_history",
]


class HistoryError(Exception):
    """The file is not a history of this version."""


@dataclass(slots=True)
class ClientOperation:
    """One invoke line with its outcome."""

    invoke: HistoryRecord
    completion: HistoryRecord | None = None
    resends: list[HistoryRecord] = field(default_factory=list)

    @property
    def phase(self) -> OperationPhase:
        """OK, FAIL or UNKNOWN; without a completion line UNKNOWN."""
        return self.completion.phase if self.completion is not None else OperationPhase.UNKNOWN

    @property
    def ok(self) -> bool:
        """Whether the operation succeeded."""
        return self.phase is OperationPhase.OK

    @property
    def started_ns(self) -> int:
        """Invoke time, ns."""
        return self.invoke.time_ns

    @property
    def ended_ns(self) -> int:
        """Answer time, ns; FOREVER_NS without one, because the operation may take effect later."""
        if self.completion is None or self.completion.phase is OperationPhase.UNKNOWN:
            return FOREVER_NS
        return self.completion.time_ns

    @property
    def may_have_happened(self) -> bool:
        """False only for a refused operation that was sent once: an earlier copy may have been accepted."""
        return self.phase is not OperationPhase.FAIL or bool(self.resends)

    @property
    def proof(self) -> list[HistoryRecord]:
        """The records of the operation: invocation, and completion if it exists."""
        return [self.invoke] if self.completion is None else [self.invoke, self.completion]


@dataclass(slots=True)
class ClientConnection:
    """One CONNECT and its connection."""

    connect: ClientOperation
    disconnect: ClientOperation | None = None
    close: HistoryRecord | None = None
    last_seen_ns: int = 0  # time of the last line that proves that the broker served this connection

    @property
    def number(self) -> int:
        """The connection's number, unique in a run."""
        return self.connect.invoke.connection

    @property
    def client_id(self) -> str:
        """Client identifier of CONNECT."""
        return self.connect.invoke.client_id

    @property
    def durable(self) -> bool:
        """Whether CONNECT requested a session that outlives the connection."""
        return self.connect.invoke.session_expiry_interval_s > 0

    @property
    def ended_ns(self) -> int:
        """Time at which the client detected the end of the connection; FOREVER_NS while it is open."""
        ends = [self.close.time_ns] if self.close is not None else []
        if self.disconnect is not None:
            ends.append(self.disconnect.started_ns)
        return min(ends, default=FOREVER_NS)


class RunHistory:
    """All records of one run, with indexes for checkers."""

    def __init__(self, header: Header, records: Iterable[HistoryRecord], truncated: bool = False) -> None:
        self.header = header
        self.records = list(records)
        self.truncated = truncated
        self.operations: dict[int, ClientOperation] = {}
        self.receives: list[HistoryRecord] = []
        self.marks: list[HistoryRecord] = []
        self.connections: dict[int, ClientConnection] = {}
        for record in self.records:
            self._add(record)

    def of_kind(self, kind: Kind) -> Iterator[ClientOperation]:
        """Yield operations of one kind in the order of invocation."""
        return (operation for operation in self.operations.values() if operation.invoke.kind is kind)

    def setting(self, name: str, default: float) -> float:
        """Return a number from the header, or the default if it is missing."""
        return self.header.settings.get(name, default)

    @cached_property
    def publishes(self) -> dict[str, ClientOperation]:
        """Publish operations by payload identifier, without empty payloads (retained clears)."""
        return {op.invoke.payload: op for op in self.of_kind(Kind.PUBLISH) if op.invoke.payload}

    @cached_property
    def connections_of(self) -> dict[str, list[ClientConnection]]:
        """Connections by client identifier, in the order of their CONNECTs."""
        found: dict[str, list[ClientConnection]] = defaultdict(list)
        for connection in self.connections.values():
            found[connection.client_id].append(connection)
        return dict(found)

    @cached_property
    def received_by(self) -> dict[str, dict[str, list[HistoryRecord]]]:
        """Delivered messages: client identifier -> payload identifier -> receives in order of time."""
        found: dict[str, dict[str, list[HistoryRecord]]] = defaultdict(lambda: defaultdict(list))
        for record in self.receives:
            if record.handed_over and record.payload:
                found[record.client_id][record.payload].append(record)
        return {client_id: dict(messages) for client_id, messages in found.items()}

    @cached_property
    def drained_ns(self) -> int | None:
        """End of the quiet phase, ns; None if the run is incomplete, so loss cannot be checked."""
        ends = [mark.time_ns for mark in self.marks if mark.kind is Kind.DRAINED]
        return ends[-1] if ends else None

    @cached_property
    def quiet_ns(self) -> int | None:
        """Start of the last quiet phase, ns; None without one."""
        starts = [mark.time_ns for mark in self.marks if mark.kind is Kind.QUIET]
        return starts[-1] if starts else None

    @cached_property
    def end_ns(self) -> int:
        """Time of the last record, ns; 0 without any."""
        return self.records[-1].time_ns if self.records else 0

    def online_at_end(self, client_id: str) -> bool:
        """Return whether the client had an open connection at the end of the quiet phase."""
        drained_ns = self.drained_ns
        return drained_ns is not None and any(
            connection.connect.ok and connection.connect.ended_ns <= drained_ns <= connection.ended_ns
            for connection in self.connections_of.get(client_id, ())
        )

    def _add(self, record: HistoryRecord) -> None:
        connection = self.connections.get(record.connection)
        if record.phase is OperationPhase.INVOKE:
            self._add_invoke(record, connection)
            return
        if connection is not None and record.phase is not OperationPhase.UNKNOWN and record.kind is not Kind.CLOSE:
            connection.last_seen_ns = record.time_ns
        if record.phase is OperationPhase.EVENT:
            self._add_event(record, connection)
            return
        operation = self.operations.get(record.operation)
        if operation is None or operation.invoke.kind is not record.kind:
            raise HistoryError(f"line {record.line}: completes operation {record.operation}, never invoked")
        if operation.completion is not None:
            raise HistoryError(f"line {record.line}: operation {record.operation} completes twice")
        operation.completion = record

    def _add_invoke(self, record: HistoryRecord, connection: ClientConnection | None) -> None:
        if record.operation in self.operations or record.kind in EVENT_KINDS:
            raise HistoryError(f"line {record.line}: bad invoke of operation {record.operation}")
        operation = self.operations[record.operation] = ClientOperation(record)
        if record.kind is Kind.CONNECT:
            if record.connection in self.connections:
                raise HistoryError(f"line {record.line}: connect number {record.connection} used twice")
            self.connections[record.connection] = ClientConnection(operation)
        elif record.kind is Kind.DISCONNECT and connection is not None:
            connection.disconnect = operation

    def _add_event(self, record: HistoryRecord, connection: ClientConnection | None) -> None:
        if record.kind is Kind.RECEIVE:
            self.receives.append(record)
        elif record.kind is Kind.RESEND:
            if record.operation in self.operations:
                self.operations[record.operation].resends.append(record)
        elif record.kind is Kind.CLOSE:
            if connection is not None and connection.close is None:
                connection.close = record
        elif record.kind in MARK_KINDS:
            self.marks.append(record)
        else:
            raise HistoryError(f"line {record.line}: {record.kind} is not an event")


def read_history(path: Path) -> RunHistory:
    """Read a history file.

    Drops a last line without newline, because the recorder was killed while it wrote it.

    Raises:
        HistoryError: Not a history, another version, or inconsistent lines.
        OSError: The file cannot be read.
    """
    return parse_history(path.read_bytes())


def parse_history(data: bytes) -> RunHistory:
    """Parse a history from bytes; see ``read_history``."""
    lines = data.split(b"\n")
    truncated = bool(lines[-1])
    lines.pop()
    if not lines:
        raise HistoryError("no header line")
    try:
        header = msgspec.json.decode(lines[0], type=Header)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise HistoryError(f"line 1: {error}") from error
    if header.format != FORMAT_NAME or header.version != FORMAT_VERSION:
        raise HistoryError(f"line 1: {header.format} version {header.version}, expected {FORMAT_VERSION}")
    return RunHistory(header, _decode_records(lines), truncated)


def _decode_records(lines: list[bytes]) -> Iterator[HistoryRecord]:
    decoder = msgspec.json.Decoder(HistoryRecord)
    for number, line in enumerate(lines[1:], start=2):
        try:
            record = decoder.decode(line)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise HistoryError(f"line {number}: {error}") from error
        record.line = number
        yield record
