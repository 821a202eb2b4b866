"""Control messages of queries: bounded requests for a node's state, and traces that it records for an operator.

A query visits a bounded number of rows and returns the matching ones with a cursor, from which the client resumes. Rows
are structs of ``wire/messages/*_rows.py``; ``wire/messages/query_kinds.py`` lists the type of each kind, its tiers and
its least role. Decision: docs/adr/0093-looks.md.
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

LOOK_ROWS_MAX = 1_000  # of one reply
WHERE_MAX = 16  # filters of a query
COLUMNS_MAX = 64
PLACE_MAX = 200_000  # characters: a topic, or a share name and a filter, with a number before it
WAIT_MS_MAX = 10_000  # an operator's link closes after a longer silence
TRACE_S_MAX = 3_600
TRACE_EVENTS_MAX = 100_000
TRACE_PAYLOAD_MAX = 64  # bytes

Pattern: TypeAlias = Annotated[str, Meta(max_length=65_535)]  # with the wildcards * and ?
Place: TypeAlias = Annotated[str, Meta(max_length=PLACE_MAX)]  # a node's own cursor; "": the beginning, or the end
TraceName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._-]+\Z")]


class Query(ControlMessage, tag="Look"):
    """Operator to a node: return the rows of one kind that match all filters.

    The effective role is the lower one of ``role`` and the certificate's.
    """

    request: U64
    what: Word
    where: Annotated[dict[Word, Pattern], Meta(max_length=WHERE_MAX)] = {}  # column: value with * and ?
    after: Place = ""  # cursor of the previous reply
    limit: Annotated[int, Meta(ge=1, le=LOOK_ROWS_MAX)] = 100
    columns: Annotated[list[Word], Meta(max_length=COLUMNS_MAX)] = []  # empty: all
    actor: Actor = ""  # requesting user, if it is not the certificate's
    role: Word = "viewer"
    wait_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)] = 0  # for new rows of log, journal and trace


class QueryResult(ControlMessage, tag="Seen"):
    """Reply to a Query, StartTrace or StopTrace; ``error`` is one line: fault, place, remedy."""

    request: U64
    rows: Annotated[list[bytes], Meta(max_length=LOOK_ROWS_MAX)] = []  # msgpack; only the requested columns
    after: Place = ""  # cursor to resume from; "": the end
    visited: Counted = 0  # visited rows
    total: Counted = 0  # rows of this kind at this node, if it is counted; 0: unknown, or none
    map_epoch: U64 = 0
    at_ms: Counted = 0  # UTC, by this node's clock
    retry_ms: Annotated[int, Meta(ge=0, le=86_400_000)] = 0  # busy: retry after this time
    note: Detail = ""
    error: Detail = ""
    exit_code: ReasonCode = 0  # as the command line's: 1 failed, 2 usage, 4 not ready or busy


class StartTrace(ControlMessage, tag="StartTrace"):
    """Operator to an edge or storage node: record the events of one client, topic, network or message.

    A running trace of the same name and pattern continues; with another pattern it is refused.
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
    """Operator to an edge or storage node: end a trace; its events stay readable until their memory is needed."""

    request: U64
    trace: TraceName
    actor: Actor = ""
    role: Word = "viewer"
