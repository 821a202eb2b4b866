"""One question to many nodes: whom to ask when, and one page out of what they answer.

A *walk* asks nodes in order and lines their rows up; a cursor says where the next page begins. *Best* asks all of
them, keeps each node's greatest rows and merges those. *Every row* is a walk without a bound: all nodes are asked at
once, for no row twice, and the time begins anew with each answer that has rows. A question about one place is a walk
over that node alone. Decides the meaning of a node that is silent, busy, restarted or gone. Pure logic: ``handle(now,
event) -> Ready``; links and clocks are in ``admin/links.py``. A row is whatever the answer holds.
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

NODE_S = 1.0  # for one answer; a node that is busy so long has not answered either
TOTAL_S = 5.0  # for a page
TOTAL_S_MAX = 30.0
AHEAD = 4  # nodes of a walk that are asked at once: what stands behind the page is asked for again with the next one
EVERY_ROW = sys.maxsize  # as a limit
UNDER_WAY_MAX = 32  # questions of one page to different nodes
ROWS_MAX = 1000  # of one answer
BEST_MAX = 1000  # rows of a page that is not a walk


class QueryTemplate(NamedTuple):
    """A look without its place: what is wanted of each node."""

    what: str
    where: Mapping[str, str]
    columns: Sequence[str] = ()
    actor: str = ""
    role: str = "admin"  # what counts is the lower one of this and the certificate's
    wait_ms: int = 0


class QueryTarget(NamedTuple):
    """A node to ask."""

    node: str
    incarnation: int = 0  # as the map says; 0: not known


class NodeQuery(NamedTuple):
    """Ask a node: at most ``limit`` rows behind its position ``after``."""

    request: int
    node: str
    after: str
    limit: int


class QueryAnswered(NamedTuple):
    """An answer to a request.

    ``busy_ms``: nothing was looked at, ask again after that; ``error``: this node will not answer this question.
    """

    request: int
    incarnation: int  # of the node that answered
    rows: Sequence[Any] = ()
    after: str = ""  # "": the end
    busy_ms: int = 0
    error: str = ""
    total: int = 0  # rows that this node has, where it knows


class LinkFailed(NamedTuple):
    """A node cannot be asked, or its link ended."""

    node: str
    why: str


class MapMoved(NamedTuple):
    """The nodes that there are now."""

    targets: Sequence[QueryTarget]


class QueryTick(NamedTuple):
    """Time passed; the first one begins."""


Event = QueryAnswered | LinkFailed | MapMoved | QueryTick


class MissingRows(NamedTuple):
    """A node whose rows are not all there."""

    node: str
    why: str


class ResultPage(NamedTuple):
    """Rows with the node of each, and what they lack."""

    rows: tuple[tuple[str, Any], ...]
    after: Position | None = None  # where the next page begins; None: no row is left
    partial: tuple[MissingRows, ...] = ()
    restarted: tuple[str, ...] = ()  # begun anew: rows of an earlier page may come again
    total_about: int = 0  # 0: not known
    overtime: bool = False  # the time was over before the page was full

    @property
    def complete(self) -> bool:
        """Whether every node answered that had to."""
        return not self.partial


class QueryReady(NamedTuple):
    """Work for the shell: questions to send, the page once it is there, and when to come again."""

    asks: tuple[NodeQuery, ...]
    page: ResultPage | None
    next_deadline: float


class _State(enum.Enum):
    WAITING = "to be asked"
    ASKED = "asked"
    RESTING = "busy; to be asked again"
    ENDED = "no row is left"
    FAILED = "named"


class _Part:
    """One node's part of a page."""

    def __init__(self, target: QueryTarget) -> None:
        self.node, self.incarnation = target
        self.state = _State.WAITING
        self.since = ""  # position at which this page begins
        self.after = ""
        self.batches: list[tuple[Sequence[Any], str]] = []  # rows, position behind them
        self.size = 0  # rows of all batches
        self.request = self.asked_limit = self.total = 0
        self.patience = math.inf  # until when an answer must be there
        self.rests_until = 0.0
        self.restarted = False
        self.why = ""

    @property
    def over(self) -> bool:
        return self.state in (_State.ENDED, _State.FAILED)

    def fail(self, why: str) -> None:
        self.state, self.why, self.patience = _State.FAILED, why, math.inf

    def begin_anew(self, incarnation: int) -> None:
        """Forget the rows of an earlier incarnation: those that are not shown yet never are."""
        self.restarted |= bool(self.after)
        self.incarnation = incarnation
        self.batches, self.size = [], 0
        self.since = self.after = ""
        self.state, self.patience = _State.WAITING, math.inf

    def cut(self, fitting: int) -> None:
        """Keep the first batches; go on behind them."""
        del self.batches[fitting:]
        self.size = sum(len(rows) for rows, _ in self.batches)
        self.after = self.batches[-1][1] if self.batches else self.since
        self.state, self.patience = _State.WAITING, math.inf


class ScatterGather:
    """One page: made, given events until ``QueryReady.page`` is there, and thrown away."""

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
        """Prepare a question.

        Args:
            targets: The nodes, in any order.
            limit: Rows of the page, 1 or more; EVERY_ROW of a walk.
            after: Where a walk goes on.
            best: Key of a row; the rows with the greatest are wanted. None: a walk.
            node_s: For one answer.
            total_s: For the page.
        Raises:
            CursorRefused: The node to go on with is none of the targets.
        """
        assert limit >= 1 and (best is None or (limit <= BEST_MAX and after is None))
        self._parts = [_Part(target) for target in sorted(targets)]
        self._limit, self._best = limit, best
        self._node_s, self._total_s = min(node_s, total_s), total_s
        self._deadline = math.inf
        self._from_the_first = after is None
        self._requests = 0
        if after is not None:
            self._go_on(after)

    def _go_on(self, position: Position) -> None:
        if all(part.node != position.node for part in self._parts):
            raise CursorRefused(f"the cursor goes on at node {position.node!r}, which is not there any more")
        self._parts = [part for part in self._parts if part.node >= position.node]
        first = self._parts[0]
        if position.after and first.incarnation and position.incarnation not in (0, first.incarnation):
            first.restarted = True  # the map knows it already
            return
        first.since = first.after = position.after
        first.incarnation = position.incarnation or first.incarnation

    # -- events

    def handle(self, now: float, event: Event) -> QueryReady:
        """Take an event; each call returns what to do now, and a page at most once."""
        if self._deadline == math.inf:
            self._deadline = now + self._total_s
        if isinstance(event, QueryAnswered):
            self._answered(now, event)
        elif isinstance(event, LinkFailed):
            for part in self._parts:
                if part.node == event.node and not part.over:
                    part.fail(event.why)
        elif isinstance(event, MapMoved):
            self._moved({target.node: target.incarnation for target in event.targets})
        for part in self._parts:
            if part.state in (_State.ASKED, _State.RESTING) and now >= part.patience:
                busy = part.state is _State.RESTING
                part.fail(f"busy for {self._node_s:g} s" if busy else f"no answer in {self._node_s:g} s")
        page = self._page(now)
        asks = () if page is not None else tuple(self._asks(now))
        return QueryReady(asks, page, math.inf if page is not None else self._next_deadline())

    def _answered(self, now: float, answer: QueryAnswered) -> None:
        part = next((part for part in self._parts if part.request == answer.request), None)
        if part is None or part.state is not _State.ASKED:
            return  # too late, or of a question that another one replaced
        if answer.busy_ms:
            part.state = _State.RESTING
            part.rests_until = now + answer.busy_ms / 1000
            return
        part.patience = math.inf
        anew = part.incarnation not in (0, answer.incarnation)
        if anew and part.after:
            part.begin_anew(answer.incarnation)
            return
        part.incarnation = answer.incarnation
        if answer.error:
            part.fail(answer.error)
        elif len(answer.rows) > part.asked_limit:
            part.fail(f"answered {len(answer.rows)} rows where {part.asked_limit} were asked")
        elif answer.after and answer.after == part.after:
            part.fail("does not get on: it answered with the position that it was asked from")
        else:
            part.total = max(part.total, answer.total)
            part.batches.append((answer.rows, answer.after))
            part.size += len(answer.rows)
            part.after = answer.after
            if answer.rows and self._limit == EVERY_ROW:
                self._deadline = now + self._total_s
            part.state = _State.WAITING if answer.after else _State.ENDED
            if self._best is not None:
                rows = [row for batch, _ in part.batches for row in batch]
                part.batches = [(heapq.nlargest(self._limit, rows, key=self._best), answer.after)]
                part.size = len(part.batches[0][0])

    def _moved(self, known: dict[str, int]) -> None:
        for part in self._parts:
            incarnation = known.get(part.node)
            if incarnation is None and not part.over:
                part.fail("left the cluster")
            elif incarnation and part.incarnation and incarnation > part.incarnation and not part.over:
                part.begin_anew(incarnation)

    # -- questions

    def _asks(self, now: float) -> list[NodeQuery]:
        """Ask what a page still lacks: the nodes of a walk in order, a few at once; all nodes for the best."""
        asks = []
        room = self._limit
        ahead = 0
        places = UNDER_WAY_MAX - sum(part.state is _State.ASKED for part in self._parts)
        for part in self._parts:
            if part.over:
                room -= part.size
                continue
            ahead += 1
            if self._best is None and ahead > (UNDER_WAY_MAX if self._limit == EVERY_ROW else AHEAD):
                break
            if part.state is _State.RESTING and now >= part.rests_until:
                part.state = _State.WAITING
            here = part.size
            wanted = self._limit if self._best is not None else room - here
            if part.state is _State.WAITING and wanted > 0 and places > 0:
                places -= 1
                asks.append(self._ask(now, part, wanted))
            elif part.state is _State.WAITING:
                part.patience = math.inf  # nobody asks it now, so it owes no answer
            room -= here
        return asks

    def _ask(self, now: float, part: _Part, wanted: int) -> NodeQuery:
        self._requests += 1
        part.request = self._requests
        part.state = _State.ASKED
        part.asked_limit = min(wanted, ROWS_MAX)
        part.patience = min(part.patience, now + self._node_s)
        return NodeQuery(part.request, part.node, part.after, part.asked_limit)

    def _next_deadline(self) -> float:
        times = [self._deadline]
        for part in self._parts:
            if part.state is _State.ASKED:
                times.append(part.patience)
            elif part.state is _State.RESTING:
                times.append(min(part.rests_until, part.patience))
        return min(times)

    # -- the page

    def _page(self, now: float) -> ResultPage | None:
        overtime = now >= self._deadline
        if self._best is not None:
            return self._best_page(overtime) if overtime or all(part.over for part in self._parts) else None
        return self._walked(overtime=overtime)

    def _best_page(self, overtime: bool) -> ResultPage:
        assert self._best is not None
        key = self._best
        rows = [(part.node, row) for part in self._parts for batch, _ in part.batches for row in batch]
        best = heapq.nlargest(self._limit, rows, key=lambda placed: key(placed[1]))
        return self._made(best, None, self._parts, overtime=overtime and not all(part.over for part in self._parts))

    def _walked(self, *, overtime: bool) -> ResultPage | None:
        """Return the page if it is full, if no row is left, or if its time is over."""
        if self._limit == EVERY_ROW and not overtime and not all(part.over for part in self._parts):
            return None
        rows: list[tuple[str, Any]] = []
        for index, part in enumerate(self._parts):
            if len(rows) >= self._limit and (part.batches or part.state is not _State.ENDED):
                after = Position(part.node, part.incarnation, part.since)
                return self._made(rows, after, self._parts[:index])
            fitting = self._fitting(part, self._limit - len(rows))
            rows += [(part.node, row) for batch, _ in part.batches[:fitting] for row in batch]
            if fitting < len(part.batches):
                failed = part.state is _State.FAILED
                part.cut(fitting)
                if failed:  # what it gave beyond this page is asked for again; nobody knows the end of it
                    return self._made(rows, Position(part.node, part.incarnation, part.after), self._parts[:index])
            if part.over:
                continue
            if len(rows) >= self._limit:
                return self._made(rows, Position(part.node, part.incarnation, part.after), self._parts[: index + 1])
            if overtime:
                after = Position(part.node, part.incarnation, part.after)
                return self._made(rows, after, self._parts, overtime=True)
            return None
        return self._made(rows, None, self._parts)

    @staticmethod
    def _fitting(part: _Part, room: int) -> int:
        """Return how many batches of a part fit: a position stands between batches only."""
        for number, (rows, _) in enumerate(part.batches):
            room -= len(rows)
            if room < 0:
                return number
        return len(part.batches)

    def _made(
        self, rows: Sequence[tuple[str, Any]], after: Position | None, parts: Sequence[_Part], *, overtime: bool = False
    ) -> ResultPage:
        """Make the page of what these parts gave; the others stand behind its end."""
        unfinished = f"not finished in {self._total_s:g} s"
        return ResultPage(
            tuple(rows),
            after,
            tuple(
                MissingRows(part.node, part.why or unfinished)
                for part in parts
                if part.state is _State.FAILED or (overtime and not part.over)
            ),
            tuple(part.node for part in parts if part.restarted),
            self._total(),
            overtime,
        )

    def _total(self) -> int:
        """Return how many rows there are; 0, not known, where a node has not answered or stands before this page."""
        answered = all(part.total or part.over for part in self._parts)
        return sum(part.total for part in self._parts) if self._from_the_first and answered else 0
