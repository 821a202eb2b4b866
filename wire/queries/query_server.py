"""The query server of one node: queues queries and answers them at the end of iterations, as the pace allows.

Sans-IO. Row sources provide the data (``wire/queries/source.py``). The server checks role, filters and columns, walks
until a bound is reached, and returns a cursor. Decision: docs/adr/0093-looks.md.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from wire.messages.queries import Query, QueryResult
from wire.messages.query_kinds import LOOK_KINDS, QueryKind, columns_of, lower_role, may_look
from wire.queries.pace import Clocks, QueryBounds, QueryPacer
from wire.queries.source import FAILED, USAGE, Columns, Place, QueryRefused, RowScan, RowSource
from wire.queries.tracer import Tracer
from wire.queries.wildcards import is_literal, matcher

__all__ = ["QueryServer"]

PENDING_MAX = 64  # queries, including those that wait for new rows
NOT_READY = 4
NEW_ROWS_POLL_S = 0.1  # between two checks for new rows
WHOLE_ROW_COLUMNS_MIN = 6  # from this number of columns on, building the whole row and removing columns is cheaper
CLOCK_CHECK_ROWS = 8  # rows between two readings of the clock
PATTERN_MAX = 1_024  # characters, of one with wildcards
TEXT_MAX = 4_096  # characters of one value: a client ID may have 65 535
SHORT_TEXT_MAX = 200  # of values of a row that alone exceeds a reply
PAYLOAD = "payload"  # a column, and the filter that requests it
CUT_NOTE = f"texts above {TEXT_MAX} characters are cut"

_encoder = msgspec.msgpack.Encoder()


class _PendingQuery:
    """A pending query."""

    __slots__ = ("conditions", "deadline", "look", "names", "node", "role", "source")

    def __init__(
        self,
        node: str,
        query: Query,
        role: str,
        source: RowSource,
        conditions: list[Any],
        names: tuple[str, ...],
        deadline: float,
    ) -> None:
        self.node = node
        self.look = query
        self.role = role
        self.source = source
        self.conditions = conditions
        self.names = names  # returned columns
        self.deadline = deadline  # time until which it waits for new rows


class QueryServer:
    """The queries at one node.

    Args:
        name: Of the node, for error texts.
        tier: Of the node.
        bounds: Of one query.
        sources: By kind.
        tell: Sends a reply to an operator.
        map_epoch: Returns the epoch of this node's map.
        utc_ms: Milliseconds since the epoch, by this node's clock.
        clocks: Of the process.

    Attributes:
        traces: The tracer that shares the clock.
    """

    def __init__(
        self,
        name: str,
        tier: str,
        bounds: QueryBounds,
        sources: Mapping[str, RowSource],
        tell: Callable[[str, QueryResult], object],
        map_epoch: Callable[[], int],
        utc_ms: Callable[[], int] = lambda: 0,
        clocks: Clocks | None = None,
    ) -> None:
        self._name = name
        self._tier = tier
        self._bounds = bounds
        self._sources = dict(sources)
        self._send = tell
        self._map_epoch = map_epoch
        self._utc_ms = utc_ms
        self._clocks = clocks or Clocks()
        self._pace = QueryPacer(self._clocks.processor)
        self.traces: Tracer | None = None
        self._ready: deque[_PendingQuery] = deque()
        self._waiting: list[_PendingQuery] = []  # waiting for new rows
        self._check_waiting_at = 0.0

    def __len__(self) -> int:
        return len(self._ready) + len(self._waiting)

    def kinds(self) -> dict[str, RowSource]:
        """Return the row sources of this node by kind."""
        return dict(self._sources)

    def show(self, what: str, source: RowSource) -> None:
        """Add or replace the source of a kind."""
        self._sources[what] = source

    def set_clocks(self, clocks: Clocks, utc_us: Callable[[], int]) -> None:
        """Set the clocks of the process."""
        self._clocks, self._utc_ms = clocks, lambda: utc_us() // 1000
        if self.traces is not None:
            self.traces.utc_us = utc_us
        self._pace = QueryPacer(clocks.processor)

    def ask(self, now: float, node: str, role: str, query: Query) -> None:
        """Queue a query or refuse it; ``role`` is the certificate's."""
        role = lower_role(role, query.role)
        try:
            source, conditions = self._validate(query, role)
            names = _shown(query, role, source.columns)
        except QueryRefused as refusal:
            self._answer(node, query, error=str(refusal), exit_code=refusal.exit_code)
            return
        if len(self) >= PENDING_MAX:
            retry_ms = int(1000 * max(0.0, self._pace.next_at() - now)) + 5 * PENDING_MAX
            error = f"{self._name} is busy: {len(self)} looks wait; ask again in {retry_ms} ms"
            self._answer(node, query, error=error, exit_code=NOT_READY, retry_ms=retry_ms)
            return
        waits = query.wait_ms / 1000 if source.newest is not None else 0.0
        self._ready.append(_PendingQuery(node, query, role, source, conditions, names, now + waits))

    def gone(self, node: str) -> None:
        """Drop the queries of an operator whose link ended."""
        if self._ready:
            self._ready = deque(pending for pending in self._ready if pending.node != node)
        if self._waiting:
            self._waiting = [pending for pending in self._waiting if pending.node != node]

    def turn(self, now: float) -> None:
        """Answer pending queries at the end of an iteration, as far as the pace allows."""
        if self._waiting and now >= self._check_waiting_at:
            self._check_waiting(now)
        while self._ready and self._pace.may_look(now):
            began = self._clocks.work()
            self._execute(now, self._ready.popleft())
            self._pace.looked(self._clocks.work() - began)

    def next_deadline(self) -> float:
        """Return when ``turn`` has work; infinity without pending queries."""
        deadline = self._pace.next_at() if self._ready else float("inf")
        return min(deadline, self._check_waiting_at) if self._waiting else deadline

    # --- validation

    def _validate(self, query: Query, role: str) -> tuple[RowSource, list[Any]]:
        kind = LOOK_KINDS.get(query.what)
        source = self._sources.get(query.what)
        if kind is None or source is None:
            known = ", ".join(sorted(self._sources))
            raise QueryRefused(f"{self._tier} {self._name} shows no {_line(query.what)!r}: it shows {known}", USAGE)
        if not may_look(query.what, role):
            raise QueryRefused(f"a look at {query.what} wants the role {kind.role}; what counts here is {role}", FAILED)
        missing = [name for name in kind.demands if not query.where.get(name)]
        if missing:
            raise QueryRefused(f"a look at {query.what} must name {' and '.join(missing)}", USAGE)
        columns = columns_of(query.what)
        unknown = [name for name in query.columns if name not in columns]
        if unknown:
            raise QueryRefused(f"{query.what} has no column {_line(unknown[0])!r}: {', '.join(columns)}", USAGE)
        return source, self._conditions(query, kind, source.columns)

    def _conditions(self, query: Query, kind: QueryKind, columns: Columns) -> list[Any]:
        """Return (column, predicate) of each filter that the server evaluates."""
        found = []
        for name, pattern in query.where.items():
            if name in kind.demands or name in kind.takes:
                continue
            if name not in columns:
                known = ", ".join((*kind.demands, *kind.takes, *columns))
                raise QueryRefused(f"{query.what} has no {_line(name)!r} to choose by: {known}", USAGE)
            if len(pattern) > PATTERN_MAX and not is_literal(pattern):
                raise QueryRefused(f"a pattern for {name} has at most {PATTERN_MAX} characters", USAGE)
            found.append((columns[name], matcher(pattern)))
        return found

    # --- execution

    def _check_waiting(self, now: float) -> None:
        self._check_waiting_at = now + NEW_ROWS_POLL_S
        still = []
        for pending in self._waiting:
            if now >= pending.deadline or self._has_new_rows(pending, now):
                pending.deadline = 0.0
                self._ready.append(pending)
            else:
                still.append(pending)
        self._waiting = still

    def _has_new_rows(self, pending: _PendingQuery, now: float) -> bool:
        newest = pending.source.newest
        if newest is None:
            return True
        scan = self._scan_of(pending, now)
        try:
            return newest(scan) > max(0, scan.numbers(1)[0])
        except QueryRefused:
            return True

    def _scan_of(self, pending: _PendingQuery, now: float) -> RowScan:
        query = pending.look
        return RowScan(query.where, query.after, frozenset(pending.names), pending.role, query.limit, now)

    def _execute(self, now: float, pending: _PendingQuery) -> None:
        if pending.deadline > now and not self._has_new_rows(pending, now):
            self._waiting.append(pending)
            self._check_waiting_at = max(self._check_waiting_at, now)
            return
        query, source = pending.look, pending.source
        try:
            rows, after, visited, cut = self._walk(pending, now)
        except QueryRefused as refusal:
            self._answer(pending.node, query, error=str(refusal), exit_code=refusal.exit_code)
            return
        note = "; ".join(filter(None, (source.note, CUT_NOTE if cut else "")))
        total = source.total() if source.total is not None else 0
        self._answer(pending.node, query, rows=rows, after=after, visited=visited, total=total, note=note)

    def _walk(self, pending: _PendingQuery, now: float) -> tuple[list[bytes], str, int, bool]:
        """Return the matching rows, the cursor, the number of visited rows, and whether a text was cut."""
        query, bounds, conditions = pending.look, self._bounds, pending.conditions
        columns = pending.source.columns
        shown = [(name, columns[name]) for name in pending.names]
        whole, unwanted = _whole_row(pending)
        until = self._clocks.work() + self._pace.longest_s(bounds.seconds)
        rows: list[bytes] = []
        visited = size = 0
        cursor: Place = query.after
        cut = False
        for at, item in pending.source.walk(self._scan_of(pending, now)):
            visited += 1
            if item is not None and (
                not conditions or all(_matches(column(item), predicate) for column, predicate in conditions)
            ):
                row, was_cut = _packed(item, shown, TEXT_MAX, whole, unwanted)
                if len(row) > bounds.reply_bytes:
                    row, was_cut = _packed(item, shown, SHORT_TEXT_MAX)
                if rows and size + len(row) > bounds.reply_bytes:
                    return rows, _text(cursor), visited - 1, cut
                rows.append(row)
                size += len(row)
                cut = cut or was_cut
            cursor = at
            if len(rows) >= query.limit or visited >= bounds.rows:
                return rows, _text(cursor), visited, cut
            if visited % CLOCK_CHECK_ROWS == 0 and self._clocks.work() > until:
                return rows, _text(cursor), visited, cut
        # A client that waits for new rows resumes at the current end of the list.
        return rows, _text(cursor) if query.wait_ms and pending.source.newest is not None else "", visited, cut

    def _answer(
        self,
        node: str,
        query: Query,
        *,
        rows: list[bytes] | None = None,
        after: str = "",
        visited: int = 0,
        total: int = 0,
        note: str = "",
        error: str = "",
        exit_code: int = 0,
        retry_ms: int = 0,
    ) -> None:
        result = QueryResult(
            query.request,
            rows or [],
            after,
            visited,
            total,
            self._map_epoch(),
            self._utc_ms(),
            retry_ms,
            note,
            error,
            exit_code,
        )
        self._send(node, result)


def _whole_row(pending: _PendingQuery) -> tuple[Callable[[Any], msgspec.Struct] | None, list[str]]:
    """Return the factory of whole rows and the columns to remove from them; None if few columns are requested."""
    source, names = pending.source, pending.names
    if source.whole is None or len(names) < min(WHOLE_ROW_COLUMNS_MIN, len(source.columns)):
        return None, []
    return source.whole(), [name for name in columns_of(pending.look.what) if name not in names]


def _shown(query: Query, role: str, columns: Columns) -> tuple[str, ...]:
    """Return the columns of a reply; payloads are returned only if their filter requests them.

    Raises:
        QueryRefused: The payload column is requested without its filter, or the role does not suffice.
    """
    names = tuple(name for name in query.columns or columns if name in columns)
    if PAYLOAD not in names or PAYLOAD not in LOOK_KINDS[query.what].takes:
        return names
    if RowScan(query.where, "", frozenset(), role, 0, 0.0).wants_payload():
        return names
    if query.columns:
        raise QueryRefused(f"the column {PAYLOAD} wants the condition {PAYLOAD}: head or full", USAGE)
    return tuple(name for name in names if name != PAYLOAD)


def _matches(value: object, predicate: Callable[[str], bool]) -> bool:
    if value is None:
        return False
    if isinstance(value, bool):
        return predicate("true" if value else "false")
    if isinstance(value, list | tuple):
        return any(predicate(str(one)) for one in value)
    return predicate(value if isinstance(value, str) else str(value))


def _packed(
    item: object,
    shown: list[tuple[str, Callable[[Any], object]]],
    text_max: int,
    whole: Callable[[Any], msgspec.Struct] | None = None,
    unwanted: Iterable[str] = (),
) -> tuple[bytes, bool]:
    """Return an encoded row, and whether a text in it was cut."""
    if whole is not None:
        made = whole(item)
        for name in unwanted:
            setattr(made, name, None)
        if len(packed := _encoder.encode(made)) <= text_max:
            return packed, False
    row = {name: value for name, column in shown if (value := column(item)) is not None}
    packed = _encoder.encode(row)
    if len(packed) <= text_max:  # then each text is short too
        return packed, False
    long = {name: value[:text_max] for name, value in row.items() if isinstance(value, str) and len(value) > text_max}
    return (_encoder.encode(row | long), True) if long else (packed, False)


def _text(cursor: Place) -> str:
    return ":".join(map(str, cursor)) if isinstance(cursor, tuple) else str(cursor)


def _line(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text[:64])
