"""Small histories written by hand: one call per packet, one millisecond per line.

The defaults are those of the commonest case: a durable QoS 1 client whose operations succeed at once.
"""

from __future__ import annotations

import io

from stratamq.history.check import judge
from stratamq.history.history import RunHistory, parse_history
from stratamq.history.operations import NEVER_EXPIRES_S, Header, Kind, OperationPhase
from stratamq.history.verdict import HistoryVerdict
from stratamq.history.writer import HistoryWriter

MS = 1_000_000

__all__ = ["Script"]


class Script:
    """Write a history line by line; each line is 1 ms after the last, ``wait`` adds more."""

    def __init__(self, **settings: float) -> None:
        self._file = io.BytesIO()
        header = Header(workload="script", seed=1, broker=("test:1883",), settings=settings)
        self.writer = HistoryWriter(self._file, header)
        self.now_ns = 0
        self.connection: dict[str, int] = {}  # process -> its latest connect number
        self._client: dict[str, str] = {}
        self._invoked: dict[int, tuple[Kind, dict[str, object]]] = {}

    def wait(self, ms: int) -> None:
        self.now_ns += ms * MS

    def invoke(self, kind: Kind, process: str, **fields: object) -> int:
        """Write an invoke line; answer it with ok, fail or unknown, or leave it open."""
        fields = {**self._who(process), **fields}
        number = self.writer.invoke(self._tick(), kind, **fields)
        self._invoked[number] = (kind, fields)
        return number

    def ok(self, operation: int, **fields: object) -> int:
        return self._complete(operation, OperationPhase.OK, fields)

    def fail(self, operation: int, **fields: object) -> int:
        return self._complete(operation, OperationPhase.FAIL, fields)

    def unknown(self, operation: int) -> int:
        return self._complete(operation, OperationPhase.UNKNOWN, {})

    def connecting(self, process: str, client_id: str = "", **fields: object) -> int:
        self._client[process] = client_id or process
        self.connection[process] = self.writer.next_connection()
        defaults: dict[str, object] = {"session_expiry_interval_s": NEVER_EXPIRES_S}
        return self.invoke(Kind.CONNECT, process, **{**defaults, **fields})

    def connect(self, process: str, client_id: str = "", present: bool = False, **fields: object) -> int:
        return self.ok(self.connecting(process, client_id, **fields), session_present=present)

    def disconnect(self, process: str, reason_code: int = 0) -> int:
        return self.ok(self.invoke(Kind.DISCONNECT, process, reason_code=reason_code))

    def close(self, process: str, reason: str = "peer") -> None:
        self.event(Kind.CLOSE, process, reason=reason)

    def subscribe(self, process: str, topic_filter: str, qos: int = 1) -> int:
        return self.ok(self.invoke(Kind.SUBSCRIBE, process, topic_filter=topic_filter, qos=qos), qos=qos)

    def unsubscribe(self, process: str, topic_filter: str) -> int:
        return self.ok(self.invoke(Kind.UNSUBSCRIBE, process, topic_filter=topic_filter))

    def publishing(self, process: str, topic: str, payload: str, qos: int = 1, **fields: object) -> int:
        return self.invoke(Kind.PUBLISH, process, topic=topic, payload=payload, qos=qos, **fields)

    def publish(self, process: str, topic: str, payload: str, qos: int = 1, **fields: object) -> int:
        return self.ok(self.publishing(process, topic, payload, qos, **fields))

    def receive(self, process: str, topic: str, payload: str, qos: int = 1, **fields: object) -> None:
        self.event(Kind.RECEIVE, process, topic=topic, payload=payload, qos=qos, **fields)

    def read(self, process: str, topic: str, payload: str) -> int:
        return self.ok(self.invoke(Kind.READ, process, topic=topic), payload=payload)

    def event(self, kind: Kind, process: str = "", **fields: object) -> None:
        who = self._who(process) if process else {}
        self.writer.event(self._tick(), kind, **{**who, **fields})

    def quiet(self) -> None:
        """Write the quiet phase: from here on nothing is late any more."""
        self.event(Kind.QUIET)
        self.wait(10_000)
        self.event(Kind.DRAINED)

    def bytes(self) -> bytes:
        return self._file.getvalue()

    def judge(self) -> HistoryVerdict:
        return judge(self.history())

    def history(self) -> RunHistory:
        """Return the history as it is read back from its bytes."""
        return parse_history(self.bytes())

    def found(self) -> dict[str, int]:
        """Return the number of findings of each checker that has any."""
        return {name: report.found for name, report in self.judge().reports.items() if report.found}

    def _complete(self, operation: int, phase: OperationPhase, fields: dict[str, object]) -> int:
        kind, asked = self._invoked[operation]
        who = {name: asked[name] for name in ("process", "client_id", "connection")}
        self.writer.complete(self._tick(), phase, kind, operation, **{**who, **fields})
        return operation

    def _who(self, process: str) -> dict[str, object]:
        return {
            "process": process,
            "client_id": self._client.get(process, process),
            "connection": self.connection.get(process, 0),
        }

    def _tick(self) -> int:
        self.now_ns += MS
        return self.now_ns
