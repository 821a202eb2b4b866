"""Control messages of looks: bounded questions about what a node holds, and traces that it keeps for an operator.

A look visits a bounded number of rows and answers with those that it found and with the place behind them; the asker
goes on from there. Rows are structs of ``wire/messages/look_rows_*.py``; ``wire/messages/query_kinds.py`` names the
type of each kind, the tiers that answer it and the least role that it takes. Decision: docs/adr/0093-looks.md.
"""

from typing import Annotated, TypeAlias

from msgspec import Meta

from wire.messages.message import ControlMessage
from wire.messages.ranges import U64, Actor, Counted, Detail, ReasonCode, Word

__all__ = [
    "COLUMNS_MAX",
    "LOOK_ROWS_MAX",
    "PLACE_MAX",
    "TRACE_EVENTS_MAX",
    "TRACE_PAYLOAD_MAX",
    "TRACE_S_MAX",
    "WAIT_MS_MAX",
    "WHERE_MAX",
    "Pattern",
    "Query",
    "QueryResult",
    "StartTrace",
    "StopTrace",
    "TraceName",
]

LOOK_ROWS_MAX = 1_000  # of one answer
WHERE_MAX = 16  # conditions of a question
COLUMNS_MAX = 64
PLACE_MAX = 200_000  # characters: a topic, or a share name and a filter, with a number before it
WAIT_MS_MAX = 10_000  # an operator's link that is silent for longer is given up anyway
TRACE_S_MAX = 3_600
TRACE_EVENTS_MAX = 100_000
TRACE_PAYLOAD_MAX = 64  # bytes

Pattern: TypeAlias = Annotated[str, Meta(max_length=65_535)]  # with * and ?, nothing else
Place: TypeAlias = Annotated[str, Meta(max_length=PLACE_MAX)]  # a node's own; "": the beginning, or the end
TraceName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._-]+\Z")]


class Query(ControlMessage, tag="Look"):
    """Operator to a node: rows of one kind that meet every condition.

    What counts is the lower one of ``role`` and the certificate's.
    """

    request: U64
    what: Word
    where: Annotated[dict[Word, Pattern], Meta(max_length=WHERE_MAX)] = {}  # column: value with * and ?
    after: Place = ""  # of the answer before
    limit: Annotated[int, Meta(ge=1, le=LOOK_ROWS_MAX)] = 100
    columns: Annotated[list[Word], Meta(max_length=COLUMNS_MAX)] = []  # none: every one
    actor: Actor = ""  # who asks, where that is another one than the certificate's
    role: Word = "viewer"
    wait_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)] = 0  # for news, of log, journal and trace


class QueryResult(ControlMessage, tag="Seen"):
    """Answer to a Look, StartTrace or StopTrace; ``error`` is one line: what, where, what to do."""

    request: U64
    rows: Annotated[list[bytes], Meta(max_length=LOOK_ROWS_MAX)] = []  # msgpack; what was not asked for is absent
    after: Place = ""  # go on there; "": this was the end
    visited: Counted = 0  # rows that were looked at
    total: Counted = 0  # rows of this kind at this node, where that is counted anyway; 0: not known, or none
    map_epoch: U64 = 0
    at_ms: Counted = 0  # UTC, by this node's clock
    retry_ms: Annotated[int, Meta(ge=0, le=86_400_000)] = 0  # busy: ask again after so long
    note: Detail = ""
    error: Detail = ""
    exit_code: ReasonCode = 0  # as the command line's: 1 failed, 2 usage, 4 not ready or busy


class StartTrace(ControlMessage, tag="StartTrace"):
    """Operator to an edge or storage node: note what happens to one client, topic, network or message from now on.

    A name that runs already with the same pattern goes on; with another one it is refused.
    """

    request: U64
    trace: TraceName
    kind: Word  # "client", "topic", "address", "origin"
    pattern: Pattern  # client ID with * and ?; topic filter; network as 192.0.2.0/24; origin
    for_s: Annotated[int, Meta(ge=1, le=TRACE_S_MAX)] = 600
    events_max: Annotated[int, Meta(ge=1, le=TRACE_EVENTS_MAX)] = 10_000
    payload_bytes: Annotated[int, Meta(ge=0, le=TRACE_PAYLOAD_MAX)] = 0
    actor: Actor = ""
    role: Word = "viewer"


class StopTrace(ControlMessage, tag="StopTrace"):
    """Operator to an edge or storage node: end a trace; its events stay readable until others need the room."""

    request: U64
    trace: TraceName
    actor: Actor = ""
    role: Word = "viewer"
