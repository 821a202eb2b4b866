"""An operator's links: one per queried node, opened by its first query and kept for later ones.

The shell of ``admin/scatter_gather.py``: it sends queries, passes the results on and calls the core at its deadlines.
Rows are decoded here. The map comes from the first router that answers. ``wire/links`` holds the rules of a link; a
heartbeat is sent to each node once a second.
"""

import contextlib
import itertools
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import trio

from admin.scatter_gather import (
    Event,
    LinkFailed,
    NodeQuery,
    QueryAnswered,
    QueryTemplate,
    QueryTick,
    ResultPage,
    ScatterGather,
)
from conf.errors import ExitCode, UserError
from wire.decoding import Unreadable
from wire.links.admission import check_hello, expect
from wire.links.connection import (
    LinkConnection,
    Stream,
    certified_identity,
    close_quietly,
    open_stream,
    read_hello,
    watch,
    wrap_tls,
)
from wire.links.link import LinkCore
from wire.links.silence import speak_s_of
from wire.links.tls import LinkContexts
from wire.messages.cluster_map import ClusterMap
from wire.messages.control import Control, decode_control, encode_control
from wire.messages.frames import FrameKind
from wire.messages.hello import (
    TIER_OPERATOR,
    TIER_ROUTER,
    LinkError,
    NodeIdentity,
    OtherCluster,
    PeerKey,
    encode_hello,
)
from wire.messages.map_pages import MapReader
from wire.messages.nodes import FollowMap, MapPage
from wire.messages.operators import Admin, AdminReply
from wire.messages.queries import Query, QueryResult
from wire.messages.query_kinds import rows_of
from wire.node.known_cluster import KnownCluster

__all__ = ["NodeLinks", "carry", "open_links"]

MAP_S = 4.0  # for one router to send the whole map
EVENTS_MAX = 4096  # queued events of one page: at most two per node


Deliver = Callable[[QueryResult | AdminReply | str], None]  # a result, or the reason why there is none


class _Link:
    """The link to one node, from its first query until it fails."""

    def __init__(self) -> None:
        self.core = LinkCore()
        self.connection: LinkConnection | None = None
        self.key: PeerKey | None = None
        self.waiting: dict[int, Deliver] = {}  # by request number
        self.requests = 0
        self.map_reader: MapReader | None = None
        self.on_map: Callable[[ClusterMap], None] = lambda _: None
        self.failed = ""

    def send(self, message: Control) -> None:
        self.core.send(FrameKind.CONTROL, encode_control(message))
        if self.connection is not None:
            self.connection.flush()

    def number(self, deliver: Deliver) -> int:
        self.requests += 1
        self.waiting[self.requests] = deliver
        return self.requests

    def frame(self, kind: int, payload: bytes) -> None:
        """Process a frame of the node.

        Raises:
            LinkError: A node does not send such a frame to an operator.
        """
        message = decode_control(payload) if kind == FrameKind.CONTROL else None
        if isinstance(message, QueryResult | AdminReply):
            deliver = self.waiting.pop(message.request, None)
            if deliver is not None:
                deliver(message)
        elif isinstance(message, MapPage) and self.map_reader is not None:
            self._page(message)

    def _page(self, page: MapPage) -> None:
        assert self.map_reader is not None
        try:
            found = self.map_reader.take(page)
        except ValueError as error:
            raise LinkError(str(error)) from None
        if found is not None:
            self.map_reader = None
            self.on_map(found)
        elif self.map_reader.reading:
            self.send(FollowMap(0, *self.map_reader.wanted))

    def fail(self, why: str) -> None:
        self.failed = why
        waiting, self.waiting = self.waiting, {}
        for deliver in waiting.values():
            deliver(why)


async def carry(
    gather: ScatterGather, send_query: Callable[[NodeQuery, trio.MemorySendChannel[Event]], None]
) -> ResultPage:
    """Run a scatter-gather; return its page. ``send_query`` sends a query whose result arrives on the channel."""
    results, events = trio.open_memory_channel[Event](EVENTS_MAX)
    ready = gather.handle(trio.current_time(), QueryTick())
    while ready.page is None:
        for ask in ready.asks:
            send_query(ask, results)
        event: Event = QueryTick()
        with trio.move_on_at(ready.next_deadline):
            event = await events.receive()
        ready = gather.handle(trio.current_time(), event)
    return ready.page


class NodeLinks:
    """Links to the nodes of one cluster; made by ``open_links``.

    Attributes:
        known: The queried cluster: that of the first map, or the one that the owner stored.
        other_cluster: Error of a router of another cluster; "" if none.
    """

    def __init__(
        self, nursery: trio.Nursery, cluster: str, contexts: LinkContexts | None, cluster_id: str = ""
    ) -> None:
        self._nursery, self._contexts = nursery, contexts
        self._cluster = cluster
        self.known = KnownCluster(cluster_id)
        self.other_cluster = ""
        self._opened = itertools.count(1)
        self._links: dict[str, _Link] = {}  # by node
        self._connections: set[LinkConnection] = set()
        self.asked: set[str] = set()  # nodes that were queried
        self.map = ClusterMap("")

    @property
    def cluster(self) -> str:
        """Name of the cluster."""
        return self._cluster

    async def read_map(self, routers: Sequence[str]) -> ClusterMap:
        """Return the map of the first router that sends all of it, over an existing link if possible.

        Raises:
            UserError: No router does; one line for each.
        """
        failures = []
        for link in [self._links[router.node] for router in self.map.live(TIER_ROUTER) if router.node in self._links]:
            if link.connection is not None and not link.failed and link.map_reader is None:
                with trio.move_on_after(MAP_S), contextlib.suppress(LinkError):
                    self.map = await self._read_map(link)
                    return self.map
        for address in routers:
            try:
                with trio.fail_after(MAP_S):
                    self.map = await self._map_of(address)
                    return self.map
            except trio.TooSlowError:
                failures.append(f"router {address} did not send its map within {MAP_S:g} s")
            except (LinkError, OSError, trio.BrokenResourceError) as error:
                why = error.__cause__ if isinstance(error.__cause__, OSError) else error
                failures.append(f"cannot reach router {address}: {why}")
                if isinstance(error, OtherCluster):
                    self.other_cluster = str(error)
        raise UserError("\n".join(failures) or "no router is known", ExitCode.NOT_READY)

    async def _map_of(self, address: str) -> ClusterMap:
        link = _Link()
        stream, rest = await self._open(link, address, TIER_ROUTER, "")
        assert link.key is not None
        self._links[link.key.node] = link
        self._nursery.start_soon(self._serve, link, stream, rest)
        return await self._read_map(link)

    async def _read_map(self, link: _Link) -> ClusterMap:
        """Read the whole map over a link.

        Raises:
            LinkError: The link ended first.
        """
        whole = trio.Event()
        found: list[ClusterMap] = []

        def take(cluster_map: ClusterMap) -> None:
            found.append(cluster_map)
            whole.set()

        link.map_reader, link.on_map = MapReader(), take
        request = link.number(lambda _: whole.set())  # the link may end first
        link.send(FollowMap(0))
        try:
            await whole.wait()
        finally:
            link.waiting.pop(request, None)
            link.map_reader = None
        if not found:
            raise LinkError(link.failed)
        if not self.known.accepts(found[0]):
            raise LinkError(self.known.refusal or "it sent the map of another cluster")
        return found[0]

    def belong(self, cluster_id: str) -> None:
        """Do nothing: each HELLO names the queried cluster."""
        assert cluster_id == self.known.cluster_id

    async def gather(self, gather: ScatterGather, question: QueryTemplate) -> ResultPage:
        """Run a scatter-gather; return its page."""
        return await carry(
            gather, lambda ask, results: self._ask(ask.node, question, ask.after, ask.limit, results, ask.request)
        )

    async def query_node(self, node: str, question: QueryTemplate, after: str, limit: int, timeout_s: float) -> Event:
        """Query one node once; return its result or the failure."""
        results, events = trio.open_memory_channel[Event](EVENTS_MAX)
        self._ask(node, question, after, limit, results, 0)
        with trio.move_on_after(timeout_s):
            return await events.receive()
        return LinkFailed(node, f"no answer in {timeout_s:g} s")

    def _ask(
        self,
        node: str,
        question: QueryTemplate,
        after: str,
        limit: int,
        results: trio.MemorySendChannel[Event],
        request: int,
    ) -> None:
        def deliver(answer: QueryResult | AdminReply | str) -> None:
            if isinstance(answer, QueryResult):
                assert link.key is not None
                results.send_nowait(answered(request, link.key.incarnation, question.what, answer))
            elif isinstance(answer, str):
                results.send_nowait(LinkFailed(node, answer))

        link = self._link(node)
        if link.failed:
            results.send_nowait(LinkFailed(node, link.failed))
            return
        self.asked.add(node)
        link.send(
            Query(
                link.number(deliver),
                question.what,
                dict(question.where),
                after,
                limit,
                list(question.columns),
                question.actor,
                question.role,
                question.wait_ms,
            )
        )

    def forget_failed(self) -> None:
        """Retry nodes whose link failed, at the next query."""
        for node in [node for node, link in self._links.items() if link.failed]:
            del self._links[node]

    async def order(
        self,
        node: str,
        verb: str,
        arguments: Mapping[str, object],
        timeout_s: float,
        *,
        order: str = "",
        repeated: bool = False,
        actor: str = "",
        role: str = "",
    ) -> AdminReply:
        """Send a command to a node; return its reply, or a reply with exit code 4.

        Args:
            node: Name in the map.
            verb: Command.
            arguments: Arguments of the command.
            timeout_s: For the reply.
            order: Identifier of the request, the same in each retry.
            repeated: Whether a router may have received it already.
            actor: User on whose behalf it is sent.
            role: Role of the actor; the lower of this and the certificate's applies.
        """
        reply: list[AdminReply] = []
        done = trio.Event()
        link = self._link(node)

        def deliver(answer: QueryResult | AdminReply | str) -> None:
            if isinstance(answer, AdminReply):
                reply.append(answer)
            elif isinstance(answer, str):
                reply.append(AdminReply(0, False, None, answer, ExitCode.NOT_READY))
            done.set()

        if link.failed:
            return AdminReply(0, False, None, link.failed, ExitCode.NOT_READY)
        link.send(Admin(link.number(deliver), verb, dict(arguments), order, repeated, actor, role))
        with trio.move_on_after(timeout_s):
            await done.wait()
        return reply[0] if reply else AdminReply(0, False, None, f"no answer in {timeout_s:g} s", ExitCode.NOT_READY)

    # -- links

    def _link(self, node: str) -> _Link:
        link = self._links.get(node)
        if link is None:
            link = self._links[node] = _Link()
            entry = self.map.nodes.get(node)
            if entry is None or not entry.address:
                link.failed = "the map has no address for it"
            else:
                self._nursery.start_soon(self._run, link, entry.address, entry.tier, node)
        return link

    async def _run(self, link: _Link, address: str, tier: str, node: str) -> None:
        try:
            stream, rest = await self._open(link, address, tier, node)
        except (LinkError, OSError, UserError, trio.BrokenResourceError) as error:
            why = error.__cause__ if isinstance(error.__cause__, OSError) else error
            link.fail(f"cannot connect to {address}: {why}")
            return
        await self._serve(link, stream, rest)

    async def _open(self, link: _Link, address: str, tier: str, node: str) -> tuple[Stream, bytes]:
        """Connect and exchange HELLOs; the caller bounds the time."""
        plain = await open_stream(address)
        stream: Stream = plain
        try:
            if self._contexts is not None:
                stream = await wrap_tls(plain, self._contexts.client, server_side=False)
            # A unique name: a node takes a second link of the same name for a restart, which closes the first.
            name = f"cli-{os.getpid()}-{next(self._opened)}"
            identity = NodeIdentity(self._cluster, name, TIER_OPERATOR, int(time.time() * 1000))
            identity = identity._replace(cluster_id=self.known.cluster_id)
            await stream.send_all(encode_hello(identity))
            hello, rest = await read_hello(stream)
            link.key = check_hello(identity, hello, certified_identity(stream))
            expect(link.key, tier, node)
        except BaseException:
            await close_quietly(stream)
            raise
        link.core.connected(0)
        return stream, rest

    async def _serve(self, link: _Link, stream: Stream, rest: bytes) -> None:
        connection = link.connection = LinkConnection(stream, link.core, link.frame, speak_s=speak_s_of(TIER_OPERATOR))
        self._connections.add(connection)
        connection.wake()
        try:
            await connection.run(rest)
        finally:
            self._connections.discard(connection)
            link.fail(f"the link ended: {connection.why}")

    async def watch(self) -> None:
        """Send heartbeats, and close links of nodes that are silent. Does not return."""
        await watch(self._connections, 0.0)


def answered(request: int, incarnation: int, what: str, seen: QueryResult) -> QueryAnswered:
    """Return the event of a node's result."""
    try:
        rows = rows_of(what, seen)
    except Unreadable as error:
        return QueryAnswered(request, incarnation, error=str(error))
    return QueryAnswered(request, incarnation, rows, seen.after, seen.retry_ms, seen.error, seen.total)


@asynccontextmanager
async def open_links(cluster: str, contexts: LinkContexts | None, cluster_id: str = "") -> AsyncIterator[NodeLinks]:
    """Provide links within the block; they are closed without waiting for nodes."""
    async with trio.open_nursery() as nursery:
        links = NodeLinks(nursery, cluster, contexts, cluster_id)
        nursery.start_soon(links.watch)
        yield links
        nursery.cancel_scope.cancel()
