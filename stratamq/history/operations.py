"""The history format: requests and received packets of a broker's clients, as JSON lines.

Defines the records; ``history.py`` joins them and ``checkers/`` check them. The first line is a ``Header``, every other
line a ``HistoryRecord``. An operation is an ``invoke`` line and at most one completion line with the same operation
number: ``ok`` (the broker accepted), ``fail`` (the broker refused) or ``unknown`` (the connection ended first). Unknown
is not failure: the operation may have happened, or may still happen. Received messages, ends of connections and marks
of the harness (kill, quiet, ...) are single ``event`` lines.

Sources: the operation model is that of Jepsen histories; packet words are those of MQTT 5.0 section 2.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

FORMAT_NAME: Final = "stratamq-history"
FORMAT_VERSION: Final = 1
NEVER_EXPIRES_S: Final = 0xFFFF_FFFF  # unlimited Session Expiry Interval (MQTT 5.0 section 3.1.2.11.2)

__all__ = ["FORMAT_NAME", "FORMAT_VERSION", "NEVER_EXPIRES_S", "Header", "HistoryRecord", "Kind", "OperationPhase"]


class OperationPhase(enum.StrEnum):
    """Phase of an operation that a line records."""

    INVOKE = "invoke"  # written before the first byte leaves
    OK = "ok"  # CONNACK, SUBACK, UNSUBACK, PUBACK or PUBREC with a success code was read
    FAIL = "fail"  # the same with an error code: the operation has not happened
    UNKNOWN = "unknown"  # no answer is possible
    EVENT = "event"  # has no completion line


class Kind(enum.StrEnum):
    """Subject of a line; the second group are events."""

    CONNECT = "connect"
    DISCONNECT = "disconnect"  # ok: the broker read it and closed the connection
    SUBSCRIBE = "subscribe"
    UNSUBSCRIBE = "unsubscribe"
    PUBLISH = "publish"  # ok of QoS 0 means only that the bytes were sent
    READ = "read"  # a read of a topic's retained value; ok has the value, payload "" for none

    RECEIVE = "receive"
    RESEND = "resend"  # the publish of this operation was resent on this connection
    CLOSE = "close"  # the connection ended without our DISCONNECT; reason names the cause
    KILL = "kill"
    RESTART = "restart"
    FAULT = "fault"  # start of another fault, named by reason
    HEAL = "heal"
    DROPPED = "dropped"  # the broker's counter of drops for client_id: count, reason
    QUIET = "quiet"  # no faults and no new operations after this
    DRAINED = "drained"  # end of the quiet phase: undelivered messages are missing


class Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """First line of a history.

    Attributes:
        settings: Parameters for checkers: keep_alive_s, detection_s, unavailability_limit_s.
        broker: Addresses as given on the command line.
        software: Name and version of the broker, as far as known.
    """

    format: str = FORMAT_NAME
    version: int = FORMAT_VERSION
    workload: str
    seed: int
    broker: tuple[str, ...]
    software: str = ""
    settings: dict[str, float] = {}


class HistoryRecord(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One line, with only the fields of its kind.

    Attributes:
        time_ns: Monotonic clock of the recorder; comparable only within one history.
        operation: Joins the lines of one operation; 0 for events without an operation.
        process: One logical client program. Several may use one client identifier.
        connection: Connect number, unique in the history, ascending in the order of the CONNECTs.
        payload: The unique identifier inside the payload, not the payload; "" for an empty payload.
        handed_over: False for a QoS 2 PUBLISH that repeats a packet identifier not yet released.
        damaged: The payload's checksum is wrong.
        target: Address of a CONNECT; subject of a mark.
        line: Line number in the file; set by the reader.
    """

    time_ns: int
    phase: OperationPhase
    kind: Kind
    operation: int = 0
    process: str = ""
    client_id: str = ""
    connection: int = 0
    # CONNECT and CONNACK
    protocol_version: int = 0
    clean_start: bool = False
    session_expiry_interval_s: int = 0
    session_present: bool | None = None
    will_topic: str = ""
    will_payload: str = ""
    will_qos: int = 0
    will_delay_interval_s: int = 0
    # SUBSCRIBE, UNSUBSCRIBE, PUBLISH
    topic_filter: str = ""
    topic: str = ""
    payload: str | None = None
    qos: int = 0
    dup: bool = False
    retain: bool = False
    packet_identifier: int = 0
    message_expiry_interval_s: int | None = None
    reason_code: int | None = None
    # events
    handed_over: bool = True
    damaged: bool = False
    target: str = ""
    reason: str = ""
    count: int = 0
    line: int = 0
