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

WAITING_MAX = 64  # queries, including those that wait for new rows
NOT_READY = 4
NEWS_S = 0.1  # between two checks for new rows
WHOLE_FROM = 6  # from this number of columns on, building the whole row and removing columns is cheaper
LOOKED_EVERY = 8  # rows between two readings of the clock
PATTERN_MAX = 1_024  # characters, of one with wildcards
TEXT_MAX = 4_096  # characters of one value: a client ID may have 65 535
SHORT_TEXT_MAX = 200  # of values of a row that alone exceeds a reply
PAYLOAD = "payload"  # a column, and the filter that requests it
CUT_NOTE = f"texts above {TEXT_MAX} characters are cut"

_encoder = msgspec.msgpack.Encoder()


class _Waiting:
    """A pending query."""

    __slots__ = ("conditions", "deadline", "look", "names", "node", "role", "source")

    def __init__(
        self,
        node: str,
        look: Query,
        role: str,
        source: RowSource,
        conditions: list[Any],
        names: tuple[str, ...],
        deadline: float,
    ) -> None:
        self.node = node
        self.look = look
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
        self._tell = tell
        self._map_epoch = map_epoch
        self._utc_ms = utc_ms
        self._clocks = clocks or Clocks()
        self._pace = QueryPacer(self._clocks.processor)
        self.traces: Tracer | None = None
        self._ready: deque[_Waiting] = deque()
        self._news: list[_Waiting] = []  # waiting for new rows
        self._news_at = 0.0

    def __len__(self) -> int:
        return len(self._ready) + len(self._news)

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

    def ask(self, now: float, node: str, role: str, look: Query) -> None:
        """Queue a query or refuse it; ``role`` is the certificate's."""
        role = lower_role(role, look.role)
        try:
            source, conditions = self._judge(look, role)
            names = _shown(look, role, source.columns)
        except QueryRefused as refusal:
            self._answer(node, look, error=str(refusal), exit_code=refusal.exit_code)
            return
        if len(self) >= WAITING_MAX:
            retry_ms = int(1000 * max(0.0, self._pace.next_at() - now)) + 5 * WAITING_MAX
            error = f"{self._name} is busy: {len(self)} looks wait; ask again in {retry_ms} ms"
            self._answer(node, look, error=error, exit_code=NOT_READY, retry_ms=retry_ms)
            return
        waits = look.wait_ms / 1000 if source.newest is not None else 0.0
        self._ready.append(_Waiting(node, look, role, source, conditions, names, now + waits))

    def gone(self, node: str) -> None:
        """Drop the queries of an operator whose link ended."""
        if self._ready:
            self._ready = deque(waiting for waiting in self._ready if waiting.node != node)
        if self._news:
            self._news = [waiting for waiting in self._news if waiting.node != node]

    def turn(self, now: float) -> None:
        """Answer pending queries at the end of an iteration, as far as the pace allows."""
        if self._news and now >= self._news_at:
            self._look_for_news(now)
        while self._ready and self._pace.may_look(now):
            began = self._clocks.work()
            self._look(now, self._ready.popleft())
            self._pace.looked(self._clocks.work() - began)

    def next_deadline(self) -> float:
        """Return when ``turn`` has work; infinity without pending queries."""
        deadline = self._pace.next_at() if self._ready else float("inf")
        return min(deadline, self._news_at) if self._news else deadline

    # --- validation

    def _judge(self, look: Query, role: str) -> tuple[RowSource, list[Any]]:
        kind = LOOK_KINDS.get(look.what)
        source = self._sources.get(look.what)
        if kind is None or source is None:
            known = ", ".join(sorted(self._sources))
            raise QueryRefused(f"{self._tier} {self._name} shows no {_line(look.what)!r}: it shows {known}", USAGE)
        if not may_look(look.what, role):
            raise QueryRefused(f"a look at {look.what} wants the role {kind.role}; what counts here is {role}", FAILED)
        missing = [name for name in kind.demands if not look.where.get(name)]
        if missing:
            raise QueryRefused(f"a look at {look.what} must name {' and '.join(missing)}", USAGE)
        columns = columns_of(look.what)
        unknown = [name for name in look.columns if name not in columns]
        if unknown:
            raise QueryRefused(f"{look.what} has no column {_line(unknown[0])!r}: {', '.join(columns)}", USAGE)
        return source, self._conditions(look, kind, source.columns)

    def _conditions(self, look: Query, kind: QueryKind, columns: Columns) -> list[Any]:
        """Return (column, predicate) of each filter that the server evaluates."""
        found = []
        for name, pattern in look.where.items():
            if name in kind.demands or name in kind.takes:
                continue
            if name not in columns:
                known = ", ".join((*kind.demands, *kind.takes, *columns))
                raise QueryRefused(f"{look.what} has no {_line(name)!r} to choose by: {known}", USAGE)
            if len(pattern) > PATTERN_MAX and not is_literal(pattern):
                raise QueryRefused(f"a pattern for {name} has at most {PATTERN_MAX} characters", USAGE)
            found.append((columns[name], matcher(pattern)))
        return found

    # --- execution

    def _look_for_news(self, now: float) -> None:
        self._news_at = now + NEWS_S
        still = []
        for waiting in self._news:
            if now >= waiting.deadline or self._has_news(waiting, now):
                waiting.deadline = 0.0
                self._ready.append(waiting)
            else:
                still.append(waiting)
        self._news = still

    def _has_news(self, waiting: _Waiting, now: float) -> bool:
        newest = waiting.source.newest
        if newest is None:
            return True
        ask = self._ask_of(waiting, now)
        try:
            return newest(ask) > max(0, ask.numbers(1)[0])
        except QueryRefused:
            return True

    def _ask_of(self, waiting: _Waiting, now: float) -> RowScan:
        look = waiting.look
        return RowScan(look.where, look.after, frozenset(waiting.names), waiting.role, look.limit, now)

    def _look(self, now: float, waiting: _Waiting) -> None:
        if waiting.deadline > now and not self._has_news(waiting, now):
            self._news.append(waiting)
            self._news_at = max(self._news_at, now)
            return
        look, source = waiting.look, waiting.source
        try:
            rows, after, visited, cut = self._walk(waiting, now)
        except QueryRefused as refusal:
            self._answer(waiting.node, look, error=str(refusal), exit_code=refusal.exit_code)
            return
        note = "; ".join(filter(None, (source.note, CUT_NOTE if cut else "")))
        total = source.total() if source.total is not None else 0
        self._answer(waiting.node, look, rows=rows, after=after, visited=visited, total=total, note=note)

    def _walk(self, waiting: _Waiting, now: float) -> tuple[list[bytes], str, int, bool]:
        """Return the matching rows, the cursor, the number of visited rows, and whether a text was cut."""
        look, bounds, conditions = waiting.look, self._bounds, waiting.conditions
        columns = waiting.source.columns
        shown = [(name, columns[name]) for name in waiting.names]
        whole, unwanted = _whole_row(waiting)
        until = self._clocks.work() + self._pace.longest_s(bounds.seconds)
        rows: list[bytes] = []
        visited = size = 0
        place: Place = look.after
        cut = False
        for at, thing in waiting.source.walk(self._ask_of(waiting, now)):
            visited += 1
            if thing is not None and (
                not conditions or all(_meets(column(thing), judge) for column, judge in conditions)
            ):
                row, was_cut = _packed(thing, shown, TEXT_MAX, whole, unwanted)
                if len(row) > bounds.reply_bytes:
                    row, was_cut = _packed(thing, shown, SHORT_TEXT_MAX)
                if rows and size + len(row) > bounds.reply_bytes:
                    return rows, _text(place), visited - 1, cut
                rows.append(row)
                size += len(row)
                cut = cut or was_cut
            place = at
            if len(rows) >= look.limit or visited >= bounds.rows:
                return rows, _text(place), visited, cut
            if visited % LOOKED_EVERY == 0 and self._clocks.work() > until:
                return rows, _text(place), visited, cut
        # A client that waits for new rows resumes at the current end of the list.
        return rows, _text(place) if look.wait_ms and waiting.source.newest is not None else "", visited, cut

    def _answer(
        self,
        node: str,
        look: Query,
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
        seen = QueryResult(
            look.request,
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
        self._tell(node, seen)


def _whole_row(waiting: _Waiting) -> tuple[Callable[[Any], msgspec.Struct] | None, list[str]]:
    """Return the factory of whole rows and the columns to remove from them; None if few columns are requested."""
    source, names = waiting.source, waiting.names
    if source.whole is None or len(names) < min(WHOLE_FROM, len(source.columns)):
        return None, []
    return source.whole(), [name for name in columns_of(waiting.look.what) if name not in names]


def _shown(look: Query, role: str, columns: Columns) -> tuple[str, ...]:
    """Return the columns of a reply; payloads are returned only if their filter requests them.

    Raises:
        QueryRefused: The payload column is requested without its filter, or the role does not suffice.
    """
    names = tuple(name for name in look.columns or columns if name in columns)
    if PAYLOAD not in names or PAYLOAD not in LOOK_KINDS[look.what].takes:
        return names
    if RowScan(look.where, "", frozenset(), role, 0, 0.0).wants_payload():
        return names
    if look.columns:
        raise QueryRefused(f"the column {PAYLOAD} wants the condition {PAYLOAD}: head or full", USAGE)
    return tuple(name for name in names if name != PAYLOAD)


def _meets(value: object, judge: Callable[[str], bool]) -> bool:
    if value is None:
        return False
    if isinstance(value, bool):
        return judge("true" if value else "false")
    if isinstance(value, list | tuple):
        return any(judge(str(one)) for one in value)
    return judge(value if isinstance(value, str) else str(value))


def _packed(
    thing: object,
    shown: list[tuple[str, Callable[[Any], object]]],
    text_max: int,
    whole: Callable[[Any], msgspec.Struct] | None = None,
    unwanted: Iterable[str] = (),
) -> tuple[bytes, bool]:
    """Return an encoded row, and whether a text in it was cut."""
    if whole is not None:
        made = whole(thing)
        for name in unwanted:
            setattr(made, name, None)
        if len(packed := _encoder.encode(made)) <= text_max:
            return packed, False
    row = {name: value for name, column in shown if (value := column(thing)) is not None}
    packed = _encoder.encode(row)
    if len(packed) <= text_max:  # then each text is short too
        return packed, False
    long = {name: value[:text_max] for name, value in row.items() if isinstance(value, str) and len(value) > text_max}
    return (_encoder.encode(row | long), True) if long else (packed, False)


def _text(place: Place) -> str:
    return ":".join(map(str, place)) if isinstance(place, tuple) else str(place)


def _line(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text[:64])
