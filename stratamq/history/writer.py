"""Writes a history line by line during a run.

Assigns operation and connect numbers. The caller provides the time, so the simulation writes the same format. Lines are
written whole and in order; the sink may buffer.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from stratamq.history.operations import Header, HistoryRecord, Kind, OperationPhase

__all__ = ["ByteSink", "HistoryWriter"]


class ByteSink(Protocol):
    """Place that a history is written to: a binary file, or a list in tests."""

    def write(self, data: bytes, /) -> object:
        """Append bytes to the record."""


class HistoryWriter:
    """Append records to one history.

    Numbers are handed out here because they must be unique over all clients of the run.
    """

    def __init__(self, sink: ByteSink, header: Header) -> None:
        self._sink = sink
        self._encoder = msgspec.json.Encoder()
        self._last_operation = 0
        self._last_connection = 0
        self.records_written = 0
        self._write(header)

    def next_connection(self) -> int:
        """Return a connect number above all earlier ones; call it just before the CONNECT is invoked."""
        self._last_connection += 1
        return self._last_connection

    def invoke(self, time_ns: int, kind: Kind, **fields: Any) -> int:
        """Write an invoke line and return its operation number."""
        self._last_operation += 1
        self._write(
            HistoryRecord(
                time_ns=time_ns, phase=OperationPhase.INVOKE, kind=kind, operation=self._last_operation, **fields
            )
        )
        return self._last_operation

    def complete(self, time_ns: int, phase: OperationPhase, kind: Kind, operation: int, **fields: Any) -> None:
        """Write the completion line of an operation; the caller does so once per operation."""
        self._write(HistoryRecord(time_ns=time_ns, phase=phase, kind=kind, operation=operation, **fields))

    def event(self, time_ns: int, kind: Kind, **fields: Any) -> None:
        """Write a line without a completion line."""
        self._write(HistoryRecord(time_ns=time_ns, phase=OperationPhase.EVENT, kind=kind, **fields))

    def _write(self, line: Header | HistoryRecord) -> None:
        self._sink.write(self._encoder.encode(line) + b"\n")
        self.records_written += 1
