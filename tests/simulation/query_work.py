"""An operator that lists, explains and traces during a seed, with the query layer of the command line.

Checks of every answer: no repeated row within one life of a node. An uninterrupted list contains all rows that existed
from the first page to the last. Steps of a message are in order. A trace contains only its subject. At rest, lists
equal the nodes' state, explanations of served clients report no problem, and no trace runs.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from admin.explanations import by_origin, client_explained, topic_explained
from admin.links import answered
from admin.queries import Cluster as Asked
from admin.queries import ListQuery, walk
from admin.scatter_gather import Event, LinkFailed, NodeQuery, QueryTemplate, QueryTick, ResultPage, ScatterGather
from admin.traces import in_order, rank, read
from conf.errors import UserError
from edge.clients.client import Client
from edge.clients.phase import ClientPhase
from mqtt.topics import matches
from tests.simulation.cluster import Cluster
from tests.simulation.edge_process import EdgeProcess
from tests.simulation.program import Change, Program, sleep
from tests.simulation.query_operator import QueryOperator
from tests.simulation.router_process import RouterProcess
from tests.simulation.storage_process import StorageProcess
from wire.messages.cluster_map import ClusterMap
from wire.messages.queries import Query, QueryResult, StartTrace, StopTrace

__all__ = ["QueryWork"]

KINDS = ("clients", "sessions", "subscriptions", "routes", "retained", "shares", "replicas", "journal", "slow")
PAGES_MAX = 400  # of one list, which is then abandoned
TRACE_S = (1, 3, 10)
FILTERS = ("#", "+/#", "q/#", "r/#")
OF_BEFORE = ("drop", "dropped", "takeover")  # past events of clients that are served now

Held = dict[str, object]  # existing rows of a node: name -> identity


class SimLinks:
    """Links of the query layer over an operator of the simulation."""

    def __init__(self, cluster: Cluster, looker: QueryOperator) -> None:
        self._cluster, self._looker = cluster, looker

    @property
    def map(self) -> ClusterMap:
        """Return the newest map of a running router."""
        routers = [node for node in self._cluster.nodes.values() if isinstance(node, RouterProcess)]
        maps = [node.core.machine.map for node in routers if node.up] or [ClusterMap("")]
        return max(maps, key=lambda found: found.epoch)

    async def gather(self, gather: ScatterGather, question: QueryTemplate) -> ResultPage:
        """Run a gather to its page."""
        scheduler = self._cluster.scheduler
        events: deque[Event] = deque()
        change = Change(scheduler)
        ready = gather.handle(scheduler.now, QueryTick())
        while ready.page is None:
            for ask in ready.asks:
                self._ask(ask, question, events, change)
            await change.until(lambda: events, max(0.0, ready.next_deadline - scheduler.now))
            ready = gather.handle(scheduler.now, events.popleft() if events else QueryTick())
        return ready.page

    async def query_node(self, node: str, question: QueryTemplate, after: str, limit: int, timeout_s: float) -> Event:
        """Query one node once."""
        events: deque[Event] = deque()
        change = Change(self._cluster.scheduler)
        self._ask(NodeQuery(0, node, after, limit), question, events, change)
        await change.until(lambda: events, timeout_s)
        return events.popleft() if events else LinkFailed(node, "no answer")

    def _ask(self, ask: NodeQuery, question: QueryTemplate, events: deque[Event], change: Change) -> None:
        def take(seen: QueryResult | None) -> None:
            if seen is None:
                events.append(LinkFailed(ask.node, "the link ended"))
            else:
                events.append(answered(ask.request, self._looker.incarnation(ask.node), question.what, seen))
            change.notify()

        where, columns = dict(question.where), list(question.columns)
        self._looker.look(ask.node, Query(0, question.what, where, ask.after, ask.limit, columns), take)


class Life(NamedTuple):
    """One life of a node, with its rows at one time."""

    life: int
    held: Held


class QueryWork:
    """One operator with its own program; ``failures`` are sentences."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._rng = cluster.rng("looks")
        self._looker = QueryOperator(cluster.world)
        self._links = SimLinks(cluster, self._looker)
        self._over = False
        self._program = Program(cluster.scheduler, self._run())
        self._traces: dict[str, str] = {}  # name -> filter
        self._at_rest: Program | None = None
        self.failures: list[str] = []
        self.lists = self.stories = self.events = 0

    # -- while faults come

    async def _run(self) -> None:
        works: Sequence[Callable[[], Any]] = (
            self._list,
            self._list,
            self._explain,
            self._start_trace,
            self._read_trace,
        )
        while not self._over:
            await sleep(self._rng.choice((0.01, 0.1, 0.5)))
            try:
                await self._rng.choice(works)()
            except UserError:
                pass  # one line: what is missing, and the remedy

    def _asked(self) -> Asked:
        return Asked(self._links, self._rng.choice((1.0, 5.0)))

    async def _list(self) -> None:
        await self._listed(self._rng.choice(KINDS), self._rng.choice((1, 3, 20, 200)))

    async def _listed(self, what: str, limit: int) -> list[tuple[str, Any]]:
        """Read a list to its end, and check it."""
        asked, cursor = self._asked(), ""
        rows: list[tuple[str, Any]] = []
        before = [self._lives(what)]
        broken: set[str] = set()
        for _ in range(PAGES_MAX):
            page = await walk(asked, what, ListQuery(limit=limit, cursor=cursor))
            rows += page.rows
            before.append(self._lives(what))
            broken |= {missing.node for missing in page.partial} | set(page.restarted)
            cursor = page.cursor
            if not cursor:
                self.lists += 1
                self._judge(what, rows, before, broken)
                break
        return rows

    def _judge(self, what: str, rows: list[tuple[str, Any]], before: list[dict[str, Life]], broken: set[str]) -> None:
        for node in before[0]:
            lives = [each.get(node) for each in before]
            if node in broken or any(life is None or life.life != lives[0].life for life in lives):  # type: ignore[union-attr]
                continue
            names = [_name(what, row) for where, row in rows if where == node]
            twice = [name for name, count in Counter(names).items() if count > 1 and name]
            if twice:
                self.failures.append(f"{what} of {node}: {twice[:3]} twice in one list")
            stood = _stood([life.held for life in lives if life is not None])
            lacking = stood - set(names)
            if lacking:
                self.failures.append(f"{what} of {node}: {sorted(lacking)[:3]} stood there and are not in the list")

    def _lives(self, what: str) -> dict[str, Life]:
        """Return the rows of running nodes in the map."""
        known = self._links.map.nodes
        return {
            name: Life(node.life, dict(_held(what, node)))
            for name, node in self._cluster.nodes.items()
            if node.up and name in known and known[name].alive
        }

    async def _explain(self) -> None:
        name = self._rng.choice(sorted(self._cluster.clients)) if self._cluster.clients else "nobody"
        kind = self._rng.choice(("client", "topic", "origin"))
        if kind == "client":
            await client_explained(self._asked(), name, int(self._cluster.scheduler.now * 1000))
        elif kind == "topic":
            await topic_explained(self._asked(), f"q/{name}", publisher=name)
        else:
            await by_origin(self._asked(), f"e1/{self._rng.randrange(1, 40)}/{self._rng.randrange(1, 300)}", "q/1")
        self.stories += 1

    # -- traces

    async def _start_trace(self) -> None:
        name, topic_filter = f"t{self._rng.randrange(6)}", self._rng.choice(FILTERS)
        for_s, stops = self._rng.choice(TRACE_S), self._rng.random() < 0.2
        self._traces.setdefault(name, topic_filter)
        for node in self._tracing():
            if stops:
                self._looker.tell(node, StopTrace(0, name, "sim", "operator"))
            else:
                start = StartTrace(0, name, "topic", self._traces[name], for_s, actor="sim", role="operator")
                self._looker.tell(node, start)

    def _tracing(self) -> list[str]:
        return [name for name, node in self._cluster.nodes.items() if not isinstance(node, RouterProcess)]

    async def _read_trace(self) -> None:
        name = f"t{self._rng.randrange(6)}"
        found = await read(self._asked(), name, {})
        steps: dict[str, int] = {}
        for row in in_order(found.rows, {}):
            self.events += 1
            topic, origin = row.event.topic, row.event.origin
            if topic and not matches(self._traces[name], topic):
                self.failures.append(f"trace {self._traces[name]} of {row.node}: {topic!r} is none of its topics")
            if origin:
                now = rank(row.event.stage)
                if now < steps.get(origin, 0):
                    self.failures.append(f"trace {name}: {row.event.stage} of {origin} stands behind what follows it")
                steps[origin] = now

    # -- at rest

    def finish(self) -> None:
        """Send no further queries until ``judge``."""
        self._over = True

    def ask_at_rest(self) -> None:
        """Start the queries with known answers."""
        self._program.stop()
        self._at_rest = Program(self._cluster.scheduler, self._rest())

    @property
    def done(self) -> bool:
        """Whether they are answered."""
        return self._at_rest is not None and self._at_rest.done

    async def _rest(self) -> None:
        for what in ("clients", "sessions"):
            lives = self._lives(what)
            rows = await self._listed(what, 7)
            expected = {(node, name) for node, life in lives.items() for name in life.held}
            found = {(node, _name(what, row)) for node, row in rows}
            if found != expected:
                self.failures.append(f"{what} at rest: {sorted(found ^ expected)[:3]} differ from what nodes hold")
        for client in sorted(self._served()):
            story = await client_explained(self._asked(), client, int(self._cluster.scheduler.now * 1000))
            cause = story.cause.what if story.cause is not None else ""
            if cause != ("" if self._has_subscription(client) else "no_subscription") and cause not in OF_BEFORE:
                self.failures.append(f"{client} is served, and explained by {story.verdict!r}")
        await sleep(max(TRACE_S))
        for name in self._tracing():
            node: Any = self._cluster.nodes[name]
            if node.up and node.core.operators.query_server.traces.running:
                self.failures.append(f"{name} still traces at rest")

    def _has_subscription(self, client_id: str) -> bool:
        for node in self._cluster.nodes.values():
            if isinstance(node, StorageProcess) and node.up:
                sessions = [hosted.partition.by_client.get(client_id) for hosted in node.core.partitions.values()]
                if any(session is not None and session.subscriptions for session in sessions):
                    return True
            elif isinstance(node, EdgeProcess) and node.up:
                partition = self._links.map.partition_for(client_id)
                for client in node.core.clients.at_partition(partition):
                    if client.client_id == client_id and client.subscriptions:
                        return True
        return False

    def _served(self) -> set[str]:
        held = [client for life in self._lives("clients").values() for client in life.held.values()]
        return {client.client_id for client in held if isinstance(client, Client)}


def _stood(helds: Sequence[Mapping[str, object]]) -> set[str]:
    """Return the names with the same identity at each time."""
    first, *rest = helds
    return {name for name, thing in first.items() if all(each.get(name) is thing for each in rest)}


def _held(what: str, node: Any) -> Iterator[tuple[str, object]]:
    """Yield a node's rows of a kind; none for kinds that are only checked for repeats."""
    if what == "clients" and isinstance(node, EdgeProcess):
        for number in node.core.clients.numbers():
            client = node.core.clients.get(number)
            if client is not None and client.client_id and client.phase == ClientPhase.OPEN:
                yield str(number), client
    elif what == "sessions" and isinstance(node, StorageProcess):
        for hosted in node.core.partitions.values():
            if hosted.serving:
                for number, session in hosted.partition.sessions.items():
                    yield f"{hosted.partition.number}/{number}", session


def _name(what: str, row: Any) -> str:
    """Return the identity of a row within its node; "" where rows may be equal."""
    if what == "clients":
        return str(row.number)
    if what == "sessions":
        return f"{row.partition}/{row.session}"
    if what == "subscriptions":
        return f"{row.client_id} {row.filter}" if row.durable else ""
    if what == "retained":
        return str(row.topic)
    if what == "replicas":
        return str(row.partition)
    return ""
