"""An operator of the simulation that queries nodes: over its own link to each node, page after page.

``wire/links/request.py`` and the query layer do this with trio. A broken link is dialled again at the next query.
"""

from collections.abc import Callable
from typing import Any

from tests.simulation.link_process import CLUSTER
from tests.simulation.network import Endpoint
from tests.simulation.process import Process, World
from wire.links.link import LinkCore
from wire.messages.control import Control, decode_control, encode_control
from wire.messages.frames import FrameKind
from wire.messages.hello import TIER_OPERATOR, HelloReader, LinkError, NodeIdentity, encode_hello
from wire.messages.queries import Query, QueryResult

__all__ = ["OperatorLink", "QueryOperator"]

CONNECT_S = 2.0
ALIVE_S = 0.5


class OperatorLink:
    """One link of an operator; ``answer`` is called with each received message, and with None at its end."""

    def __init__(self, answer: Callable[[Control | None], None]) -> None:
        self._answer = answer
        self.end: Endpoint | None = None
        self.over = False
        self.incarnation = 0  # of the node at the other end
        self._hello: HelloReader | None = HelloReader()
        self._core = LinkCore()
        self._waiting: list[tuple[int, bytes]] = []  # kind of frame, payload

    def connected(self, end: Endpoint | None, identity: NodeIdentity) -> None:
        """Start on a connection, or end without one."""
        if end is None:
            self.close()
            return
        self.end = end
        end.notify = self._read
        end.send(encode_hello(identity))

    def say(self, message: Control) -> None:
        """Send a message, now or once HELLOs are exchanged."""
        self.send(FrameKind.CONTROL, encode_control(message))

    def send(self, kind: int, payload: bytes) -> None:
        """Send a frame, now or once HELLOs are exchanged."""
        self._waiting.append((kind, payload))
        self._flush()

    def keep_alive(self) -> None:
        """Send a keep-alive to the node."""
        if self._hello is None and not self.over:
            self._core.keepalive()
            self._flush()

    def _flush(self) -> None:
        if self._hello is not None or self.over or self.end is None:
            return
        for kind, payload in self._waiting:
            self._core.send(kind, payload)
        self._waiting.clear()
        data = self._core.take_output()
        if data:
            self.end.send(data)

    def _read(self) -> None:
        end = self.end
        if end is None or self.over:
            return
        try:
            self._take(end.read())
        except LinkError:
            self.close()
        if end.reset or (end.eof and not end.inbox):
            self.close()

    def _take(self, data: bytes) -> None:
        if self._hello is not None:
            hello = self._hello.receive(data)
            if hello is None:
                return
            self.incarnation = hello.incarnation
            data, self._hello = self._hello.rest, None
            self._core.connected(0)
        for frame in self._core.receive(data):
            self._answer(decode_control(frame.payload))
        self._flush()

    def close(self) -> None:
        """Close it; open requests are not answered."""
        if self.over:
            return
        self.over = True
        if self.end is not None:
            self.end.close()
        self._answer(None)


class QueryOperator(Process):
    """One operator at its own host, with role admin."""

    def __init__(self, world: World, host: str = "looker") -> None:
        super().__init__(world, host, 0.0)
        self.up = True
        self._links: dict[str, OperatorLink] = {}
        self._asked: dict[tuple[str, int], Callable[[QueryResult | None], None]] = {}
        self._requests = 0
        self._lives = 0
        self.seen = 0
        self.unanswered = 0

    def look(self, node: str, look: Query, then: Callable[[QueryResult | None], None]) -> None:
        """Query a node; ``then`` is called with the answer, None if the link ended before."""
        self._requests += 1
        look.request = self._requests
        look.role = "admin"
        self._asked[node, look.request] = then
        self._link(node).say(look)

    def tell(self, node: str, message: Control) -> None:
        """Send any other message."""
        self._link(node).say(message)

    def send(self, node: str, kind: int, payload: bytes) -> None:
        """Send any frame."""
        self._link(node).send(kind, payload)

    def is_linked(self, node: str) -> bool:
        """Return whether the last link to a node is open."""
        link = self._links.get(node)
        return link is not None and not link.over

    def incarnation(self, node: str) -> int:
        """Return the incarnation of the link's node, 0 before HELLO."""
        link = self._links.get(node)
        return link.incarnation if link is not None else 0

    def _link(self, node: str) -> OperatorLink:
        link = self._links.get(node)
        if link is None or link.over:
            link = self._links[node] = OperatorLink(lambda message: self._answered(node, message))
            self._lives += 1
            now = 1 + int(self.world.scheduler.now * 1e9) + self._lives
            identity = NodeIdentity(CLUSTER, f"look-{self._lives}", TIER_OPERATOR, now)
            made = link
            self.world.network.connect(self.host, f"{node}:1", CONNECT_S, lambda end: made.connected(end, identity))
            self.later(ALIVE_S, self._keep_alive, made)
        return link

    def _keep_alive(self, link: OperatorLink) -> None:
        if not link.over:
            link.keep_alive()
            self.later(ALIVE_S, self._keep_alive, link)

    def _answered(self, node: str, message: Control | None) -> None:
        if isinstance(message, QueryResult):
            then = self._asked.pop((node, message.request), None)
            if then is not None:
                self.seen += 1
                then(message)
        elif message is None:
            for key in [key for key in self._asked if key[0] == node]:
                self.unanswered += 1
                self._asked.pop(key)(None)

    def turn(self) -> None:
        """Do nothing: no work is time-driven."""


class Pages:
    """A whole list of one node, page after page."""

    def __init__(self, looker: QueryOperator, node: str, what: str, limit: int = 100, **where: str) -> None:
        self._looker, self._node, self._what, self._limit, self._where = looker, node, what, limit, where
        self.rows: list[bytes] = []
        self.done = False
        self.broken = False
        self.error = ""
        self.pages = 0
        self._incarnation = 0
        self._ask("")

    def _ask(self, after: str) -> None:
        look = Query(0, self._what, dict(self._where), after, self._limit)
        self._looker.look(self._node, look, self._take)

    def _take(self, seen: QueryResult | None) -> None:
        incarnation = self._looker.incarnation(self._node)
        if seen is None or (self._incarnation and incarnation != self._incarnation):
            self.done = self.broken = True
            return
        if seen.error:
            self.done, self.error = True, seen.error
            return
        self._incarnation = incarnation
        self.rows += seen.rows
        self.pages += 1
        if seen.after:
            self._ask(seen.after)
        else:
            self.done = True


def whole(run: Callable[[Callable[[], bool]], Any], *lists: Pages) -> list[bytes]:
    """Advance the time until lists are complete, and return their rows."""
    run(lambda: all(one.done for one in lists))
    return [row for one in lists for row in one.rows]
