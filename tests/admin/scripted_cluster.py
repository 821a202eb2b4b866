"""Nodes of a cluster that answer queries from lists of rows, over real links."""

import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import trio

from stratamq.cli.main import main
from tests.wire.test_hub import CONTROL, Node, certificates, start
from wire.messages.cluster_map import ClusterMap, NodeEntry, NodeState, PartitionEntry, ShardEntry
from wire.messages.control import decode_control, encode_control
from wire.messages.hello import PeerKey
from wire.messages.map_pages import MapPages
from wire.messages.nodes import FollowMap
from wire.messages.operators import Admin, AdminReply
from wire.messages.queries import Query, QueryResult

PARTITIONS = 4
SHARDS = 2


class ScriptedCluster:
    """A router, edges and storage nodes; a test sets their rows."""

    def __init__(self, folder: Path, *, edges: int = 2, storages: int = 1) -> None:
        self.folder = folder
        names = [("router", "router-0")]
        names += [("edge", f"edge-{number}") for number in range(edges)]
        names += [("storage", f"storage-{number}") for number in range(storages)]
        self.nodes: dict[str, Node] = {}
        for tier, name in names:
            node = self.nodes[name] = Node(tier, name, contexts=certificates(folder, tier, name))
            node.on_frame = partial(self._frame, name)
        certificates(folder, "operator", "operator")
        self.map = ClusterMap("test", epoch=7, base_shards=SHARDS)
        self.map.partitions = [PartitionEntry(1, f"storage-{n % storages}") for n in range(PARTITIONS)]
        self.map.shards = [ShardEntry(1, "router-0") for _ in range(SHARDS)]
        self.rows: dict[tuple[str, str], list[msgspec.Struct]] = {}
        self.silent: set[str] = set()  # they receive queries and do not answer
        self.replies: dict[str, AdminReply] = {}  # by verb
        self.queries: list[tuple[str, Query]] = []
        self.orders: list[tuple[str, Admin]] = []
        self.batch = 1_000

    def put(self, node: str, what: str, *rows: msgspec.Struct) -> None:
        """Give a node rows."""
        self.rows.setdefault((node, what), []).extend(rows)

    def asked(self) -> Counter[str]:
        """Return the number of queries by node."""
        return Counter(node for node, _ in self.queries)

    def _frame(self, name: str, peer: PeerKey, payload: bytes) -> None:
        message = decode_control(payload)
        answer: Any = None
        if isinstance(message, FollowMap):
            answer = MapPages().page(self.map, max(message.page_of, 0), message.offset)
        elif isinstance(message, Query):
            self.queries.append((name, message))
            if name not in self.silent:
                answer = self._result(name, message)
        elif isinstance(message, Admin):
            self.orders.append((name, message))
            reply = self.replies.get(message.verb, AdminReply(0, False, None, f"no `{message.verb}` here", 1))
            answer = msgspec.structs.replace(reply, request=message.request)
        if answer is not None:
            assert self.nodes[name].hub.send(peer.node, CONTROL, encode_control(answer))

    def _result(self, name: str, query: Query) -> QueryResult:
        literal = ("client_id", "topic")
        rows = [
            row
            for row in self.rows.get((name, query.what), [])
            if all(getattr(row, key, query.where[key]) == query.where[key] for key in literal if key in query.where)
        ]
        begin = int(query.after or 0)
        end = min(begin + min(query.limit, self.batch), len(rows))
        raw = [msgspec.msgpack.encode(row) for row in rows[begin:end]]
        return QueryResult(
            query.request, raw, str(end) if end < len(rows) else "", total=len(rows), map_epoch=self.map.epoch
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Listen within the block; ``up.json`` names the router."""
        async with trio.open_nursery() as nursery:
            for name, node in self.nodes.items():
                address = await start(nursery, node)
                tier, incarnation = node.hub.identity.tier, node.hub.identity.incarnation
                self.map.nodes[name] = NodeEntry(name, tier, incarnation, address, state=NodeState.ACTIVE)
            routers = [self.map.nodes["router-0"].address]
            running = {"cluster": "test", "routers": routers, "tls": str(self.folder)}
            (self.folder / "up.json").write_text(json.dumps(running))
            yield
            nursery.cancel_scope.cancel()

    async def command(self, *words: str) -> int:
        """Run a command line against them; returns its exit code."""
        with _data(self.folder) as data:
            return await trio.to_thread.run_sync(main, [*words, "--data", data])


@contextlib.contextmanager
def _data(folder: Path) -> Iterator[str]:
    yield str(folder)
