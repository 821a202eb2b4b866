"""The history format: what clients of a broker asked, and what they heard, as JSON lines.

Decides the words of a history and how they are written; what they mean together is in ``history.py``, what
they prove in ``checkers/``. The first line is a ``Header``, every other line a ``HistoryRecord``. An operation is an
``invoke`` line and at most one completion line with the same operation number: ``ok`` (the broker said yes),
``fail`` (the broker said no) or ``unknown`` (the connection ended first). Unknown is never counted as failure:
the operation may have happened, may not have, and may still happen. Received messages, ends of connections
and marks of the harness (kill, quiet, ...) are single ``event`` lines.

Sources: the operation model is that of Jepsen histories; packet words are those of MQTT 5.0 section 2.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

FORMAT_NAME: Final = "stratamq-history"
FORMAT_VERSION: Final = 1
NEVER_EXPIRES_S: Final = 0xFFFF_FFFF  # Session Expiry Interval without an end (MQTT 5.0 section 3.1.2.11.2)

__all__ = ["FORMAT_NAME", "FORMAT_VERSION", "NEVER_EXPIRES_S", "Header", "HistoryRecord", "Kind", "OperationPhase"]


class OperationPhase(enum.StrEnum):
    """Where in the life of an operation a line stands."""

    INVOKE = "invoke"  # written before the first byte leaves
    OK = "ok"  # CONNACK, SUBACK, UNSUBACK, PUBACK or PUBREC with a success code was read
    FAIL = "fail"  # the same with an error code: the operation has not happened
    UNKNOWN = "unknown"  # no answer will come any more
    EVENT = "event"  # has no second half


class Kind(enum.StrEnum):
    """Subject of a line; the second group are events."""

    CONNECT = "connect"
    DISCONNECT = "disconnect"  # ok: the broker closed the connection in order after reading it
    SUBSCRIBE = "subscribe"
    UNSUBSCRIBE = "unsubscribe"
    PUBLISH = "publish"  # ok of QoS 0 says only that the bytes were handed to the network
    READ = "read"  # the retained value of one topic; ok carries it, payload "" for none

    RECEIVE = "receive"
    RESEND = "resend"  # the publish of this operation went out again, on this connection
    CLOSE = "close"  # the connection ended without DISCONNECT from us; reason says who ended it
    KILL = "kill"
    RESTART = "restart"
    FAULT = "fault"  # any other fault began; reason names it
    HEAL = "heal"
    DROPPED = "dropped"  # the broker's own counter of policy drops for client_id: count, reason
    QUIET = "quiet"  # no faults and no new work from here on
    DRAINED = "drained"  # the quiet phase is over: what has not arrived by now will not arrive


class Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """First line of a history.

    Attributes:
        settings: What the checkers need to know of the run: keep_alive_s, detection_s, unavailability_limit_s.
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
    """One line. Only the fields that the kind needs are written.

    Attributes:
        time_ns: Monotonic clock of the recorder; comparable only within one history.
        operation: Joins the lines of one operation; 0 for events that belong to none.
        process: One logical client program. Several may use one client identifier.
        connection: Connect number, unique in the history, ascending in the order of the CONNECTs.
        payload: The unique identifier inside the payload, not the payload; "" for an empty payload.
        handed_over: False for a QoS 2 PUBLISH that repeats a packet identifier not yet released.
        damaged: The payload's checksum was wrong.
        target: Address of a CONNECT; what a mark is about.
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
