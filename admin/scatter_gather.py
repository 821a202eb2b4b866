"""Sends one query to many nodes and merges their results into one page.

A *walk* reads nodes in order and concatenates their rows; a cursor holds the start of the next page. *Best* queries all
nodes, keeps each node's greatest rows and merges them. *Every row* is a walk without a bound: all nodes are queried at
once, no row twice, and each result with rows restarts the time limit. A query of one place is a walk over that node.
This module decides how to treat a node that is silent, busy, restarted or removed. Pure logic: ``handle(now, event) ->
Ready``; links and clocks are in ``admin/links.py``. Rows are opaque.
"""

import enum
import heapq
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from admin.cursors import CursorRefused, Position

__all__ = [
    "BEST_MAX",
    "EVERY_ROW",
    "NODE_S",
    "TOTAL_S",
    "TOTAL_S_MAX",
    "Event",
    "LinkFailed",
    "MapMoved",
    "MissingRows",
    "NodeQuery",
    "QueryAnswered",
    "QueryReady",
    "QueryTarget",
    "QueryTemplate",
    "QueryTick",
    "ResultPage",
    "ScatterGather",
]

NODE_S = 1.0  # for one result; a node that stays busy as long counts as silent
TOTAL_S = 5.0  # for a page
TOTAL_S_MAX = 30.0
AHEAD = 4  # nodes of a walk that are queried at once; rows after the page's end are read again for the next page
EVERY_ROW = sys.maxsize  # as a limit
IN_FLIGHT_MAX = 32  # concurrent queries of one page
ROWS_MAX = 1000  # of one result
BEST_MAX = 1000  # rows of a sorted page


class QueryTemplate(NamedTuple):
    """A query without node and position."""

    what: str
    where: Mapping[str, str]
    columns: Sequence[str] = ()
    actor: str = ""
    role: str = "admin"  # the lower of this and the certificate's role applies
    wait_ms: int = 0


class QueryTarget(NamedTuple):
    """A node to query."""

    node: str
    incarnation: int = 0  # from the map; 0: not known


class NodeQuery(NamedTuple):
    """Query a node: at most ``limit`` rows after its position ``after``."""

    request: int
    node: str
    after: str
    limit: int


class QueryAnswered(NamedTuple):
    """The result of a request.

    ``busy_ms``: no work was done, retry after it; ``error``: the node refuses this query.
    """

    request: int
    incarnation: int  # of the answering node
    rows: Sequence[Any] = ()
    after: str = ""  # "": the end
    busy_ms: int = 0
    error: str = ""
    total: int = 0  # rows of this node, if it reports them


class LinkFailed(NamedTuple):
    """A node is unreachable, or its link ended."""

    node: str
    why: str


class MapMoved(NamedTuple):
    """The current nodes."""

    targets: Sequence[QueryTarget]


class QueryTick(NamedTuple):
    """Time passed; the first one starts the query."""


Event = QueryAnswered | LinkFailed | MapMoved | QueryTick


class MissingRows(NamedTuple):
    """A node whose rows are incomplete."""

    node: str
    why: str


class ResultPage(NamedTuple):
    """Rows with the node of each, and the missing parts."""

    rows: tuple[tuple[str, Any], ...]
    after: Position | None = None  # start of the next page; None: no row remains
    partial: tuple[MissingRows, ...] = ()
    restarted: tuple[str, ...] = ()  # read from the start again: rows of an earlier page may repeat
    total_about: int = 0  # 0: not known
    overtime: bool = False  # the time limit expired before the page was full

    @property
    def complete(self) -> bool:
        """Whether every required node answered."""
        return not self.partial


class QueryReady(NamedTuple):
    """Actions for the shell: queries to send, the finished page, and the next deadline."""

    asks: tuple[NodeQuery, ...]
    page: ResultPage | None
    next_deadline: float


class _State(enum.Enum):
    PENDING = "not queried"
    ASKED = "asked"
    BUSY = "busy; to be retried"
    ENDED = "no row remains"
    FAILED = "named"


class _Part:
    """One node's part of a page."""

    def __init__(self, target: QueryTarget) -> None:
        self.node, self.incarnation = target
        self.state = _State.PENDING
        self.start = ""  # position at the start of this page
        self.after = ""
        self.batches: list[tuple[Sequence[Any], str]] = []  # rows, and the position after them
        self.size = 0  # rows of all batches
        self.request = self.limit = self.total = 0
        self.deadline = math.inf  # deadline of the result
        self.retry_at = 0.0
        self.restarted = False
        self.why = ""

    @property
    def done(self) -> bool:
        return self.state in (_State.ENDED, _State.FAILED)

    def fail(self, why: str) -> None:
        self.state, self.why, self.deadline = _State.FAILED, why, math.inf

    def restart(self, incarnation: int) -> None:
        """Discard the rows of an earlier incarnation; those not shown yet are lost."""
        self.restarted |= bool(self.after)
        self.incarnation = incarnation
        self.batches, self.size = [], 0
        self.start = self.after = ""
        self.state, self.deadline = _State.PENDING, math.inf

    def cut(self, fitting: int) -> None:
        """Keep the first batches; resume after them."""
        del self.batches[fitting:]
        self.size = sum(len(rows) for rows, _ in self.batches)
        self.after = self.batches[-1][1] if self.batches else self.start
        self.state, self.deadline = _State.PENDING, math.inf


class ScatterGather:
    """Builds one page: send events until ``QueryReady.page`` is set, then discard it."""

    def __init__(
        self,
        targets: Sequence[QueryTarget],
        limit: int,
        *,
        after: Position | None = None,
        best: Callable[[Any], Any] | None = None,
        node_s: float = NODE_S,
        total_s: float = TOTAL_S,
    ) -> None:
        """Prepare a query.

        Args:
            targets: The nodes, in any order.
            limit: Rows of the page, 1 or more; EVERY_ROW for a walk only.
            after: Start position of a walk.
            best: Sort key; the greatest rows are returned. None: a walk.
            node_s: For one result.
            total_s: For the page.

        Raises:
            CursorRefused: The cursor's node is not a target.
        """
        assert limit >= 1 and (best is None or (limit <= BEST_MAX and after is None))
        self._parts = [_Part(target) for target in sorted(targets)]
        self._limit, self._best = limit, best
        self._node_s, self._total_s = min(node_s, total_s), total_s
        self._deadline = math.inf
        self._starts_at_first = after is None
        self._requests = 0
        if after is not None:
            self._resume_at(after)

    def _resume_at(self, position: Position) -> None:
        if all(part.node != position.node for part in self._parts):
            raise CursorRefused(f"the cursor resumes at node {position.node!r}, which no longer exists")
        self._parts = [part for part in self._parts if part.node >= position.node]
        first = self._parts[0]
        if position.after and first.incarnation and position.incarnation not in (0, first.incarnation):
            first.restarted = True  # the map has the new incarnation already
            return
        first.start = first.after = position.after
        first.incarnation = position.incarnation or first.incarnation

    # -- events

    def handle(self, now: float, event: Event) -> QueryReady:
        """Process an event; return the next actions. A page is returned at most once."""
        if self._deadline == math.inf:
            self._deadline = now + self._total_s
        if isinstance(event, QueryAnswered):
            self._process_answer(now, event)
        elif isinstance(event, LinkFailed):
            for part in self._parts:
                if part.node == event.node and not part.done:
                    part.fail(event.why)
        elif isinstance(event, MapMoved):
            self._process_map({target.node: target.incarnation for target in event.targets})
        for part in self._parts:
            if part.state in (_State.ASKED, _State.BUSY) and now >= part.deadline:
                busy = part.state is _State.BUSY
                part.fail(f"busy for {self._node_s:g} s" if busy else f"no answer in {self._node_s:g} s")
        page = self._page(now)
        asks = () if page is not None else tuple(self._asks(now))
        return QueryReady(asks, page, math.inf if page is not None else self._next_deadline())

    def _process_answer(self, now: float, answer: QueryAnswered) -> None:
        part = next((part for part in self._parts if part.request == answer.request), None)
        if part is None or part.state is not _State.ASKED:
            return  # late, or of a replaced query
        if answer.busy_ms:
            part.state = _State.BUSY
            part.retry_at = now + answer.busy_ms / 1000
            return
        part.deadline = math.inf
        has_restarted = part.incarnation not in (0, answer.incarnation)
        if has_restarted and part.after:
            part.restart(answer.incarnation)
            return
        part.incarnation = answer.incarnation
        if answer.error:
            part.fail(answer.error)
        elif len(answer.rows) > part.limit:
            part.fail(f"answered {len(answer.rows)} rows, {part.limit} were requested")
        elif answer.after and answer.after == part.after:
            part.fail("makes no progress: the answer repeats the requested position")
        else:
            part.total = max(part.total, answer.total)
            part.batches.append((answer.rows, answer.after))
            part.size += len(answer.rows)
            part.after = answer.after
            if answer.rows and self._limit == EVERY_ROW:
                self._deadline = now + self._total_s
            part.state = _State.PENDING if answer.after else _State.ENDED
            if self._best is not None:
                rows = [row for batch, _ in part.batches for row in batch]
                part.batches = [(heapq.nlargest(self._limit, rows, key=self._best), answer.after)]
                part.size = len(part.batches[0][0])

    def _process_map(self, known: dict[str, int]) -> None:
        for part in self._parts:
            incarnation = known.get(part.node)
            if incarnation is None and not part.done:
                part.fail("left the cluster")
            elif incarnation and part.incarnation and incarnation > part.incarnation and not part.done:
                part.restart(incarnation)

    # -- queries

    def _asks(self, now: float) -> list[NodeQuery]:
        """Query the nodes that the page still needs: in order, a few at once, for a walk; all for the best."""
        asks = []
        remaining = self._limit
        ahead = 0
        places = IN_FLIGHT_MAX - sum(part.state is _State.ASKED for part in self._parts)
        for part in self._parts:
            if part.done:
                remaining -= part.size
                continue
            ahead += 1
            if self._best is None and ahead > (IN_FLIGHT_MAX if self._limit == EVERY_ROW else AHEAD):
                break
            if part.state is _State.BUSY and now >= part.retry_at:
                part.state = _State.PENDING
            here = part.size
            wanted = self._limit if self._best is not None else remaining - here
            if part.state is _State.PENDING and wanted > 0 and places > 0:
                places -= 1
                asks.append(self._ask(now, part, wanted))
            elif part.state is _State.PENDING:
                part.deadline = math.inf  # not queried now, so no deadline
            remaining -= here
        return asks

    def _ask(self, now: float, part: _Part, wanted: int) -> NodeQuery:
        self._requests += 1
        part.request = self._requests
        part.state = _State.ASKED
        part.limit = min(wanted, ROWS_MAX)
        part.deadline = min(part.deadline, now + self._node_s)
        return NodeQuery(part.request, part.node, part.after, part.limit)

    def _next_deadline(self) -> float:
        times = [self._deadline]
        for part in self._parts:
            if part.state is _State.ASKED:
                times.append(part.deadline)
            elif part.state is _State.BUSY:
                times.append(min(part.retry_at, part.deadline))
        return min(times)

    # -- the page

    def _page(self, now: float) -> ResultPage | None:
        overtime = now >= self._deadline
        if self._best is not None:
            return self._best_page(overtime) if overtime or all(part.done for part in self._parts) else None
        return self._walk_page(overtime=overtime)

    def _best_page(self, overtime: bool) -> ResultPage:
        assert self._best is not None
        key = self._best
        rows = [(part.node, row) for part in self._parts for batch, _ in part.batches for row in batch]
        best = heapq.nlargest(self._limit, rows, key=lambda placed: key(placed[1]))
        return self._made(best, None, self._parts, overtime=overtime and not all(part.done for part in self._parts))

    def _walk_page(self, *, overtime: bool) -> ResultPage | None:
        """Return the page if it is full, if no row remains, or if its time limit expired."""
        if self._limit == EVERY_ROW and not overtime and not all(part.done for part in self._parts):
            return None
        rows: list[tuple[str, Any]] = []
        for index, part in enumerate(self._parts):
            if len(rows) >= self._limit and (part.batches or part.state is not _State.ENDED):
                after = Position(part.node, part.incarnation, part.start)
                return self._made(rows, after, self._parts[:index])
            fitting = self._count_fitting(part, self._limit - len(rows))
            rows += [(part.node, row) for batch, _ in part.batches[:fitting] for row in batch]
            if fitting < len(part.batches):
                failed = part.state is _State.FAILED
                part.cut(fitting)
                if failed:  # rows after this page are read again; the node's end is unknown
                    return self._made(rows, Position(part.node, part.incarnation, part.after), self._parts[:index])
            if part.done:
                continue
            if len(rows) >= self._limit:
                return self._made(rows, Position(part.node, part.incarnation, part.after), self._parts[: index + 1])
            if overtime:
                after = Position(part.node, part.incarnation, part.after)
                return self._made(rows, after, self._parts, overtime=True)
            return None
        return self._made(rows, None, self._parts)

    @staticmethod
    def _count_fitting(part: _Part, remaining: int) -> int:
        """Return how many batches of a part fit: positions exist between batches only."""
        for number, (rows, _) in enumerate(part.batches):
            remaining -= len(rows)
            if remaining < 0:
                return number
        return len(part.batches)

    def _made(
        self, rows: Sequence[tuple[str, Any]], after: Position | None, parts: Sequence[_Part], *, overtime: bool = False
    ) -> ResultPage:
        """Return the page of these parts; the other parts follow the page."""
        unfinished = f"not finished in {self._total_s:g} s"
        return ResultPage(
            tuple(rows),
            after,
            tuple(
                MissingRows(part.node, part.why or unfinished)
                for part in parts
                if part.state is _State.FAILED or (overtime and not part.done)
            ),
            tuple(part.node for part in parts if part.restarted),
            self._total(),
            overtime,
        )

    def _total(self) -> int:
        """Return the total number of rows; 0, not known, if a node has not answered or precedes this page."""
        answered = all(part.total or part.done for part in self._parts)
        return sum(part.total for part in self._parts) if self._starts_at_first and answered else 0
