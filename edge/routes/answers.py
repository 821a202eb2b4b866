"""Answers of shards' owners, shared between topics: equal answers are one object.

An answer names nodes, a Route names their peers. After a change of peers the edge finds them again.
Decision: docs/adr/0023-work-in-slices.md.
"""

from collections.abc import Callable, Generator
from weakref import WeakValueDictionary

import msgspec

from edge.loop.state import LoopPeer, ShareGroup
from edge.routes.fanout_account import FanoutAccount
from edge.routes.shared_groups import SharedGroups
from wire.messages.routes import Destinations

__all__ = ["RouteAnswer", "RouteAnswers"]

ANSWER_BYTES = 400  # of an answer without destinations
GROUPS_PER_STEP = 10  # groups of an answer that are created per step of some tens of microseconds
KEY_FACTOR = 16  # objects of an answer use about so many times the bytes of its encoding

_encoder = msgspec.msgpack.Encoder()


class RouteAnswer:
    """Destinations of some topics.

    Attributes:
        edges: Other edges with a known peer.
        partitions: Partitions with durable subscribers.
        groups: Shared groups.
    """

    __slots__ = ("__weakref__", "_account", "_bytes", "edges", "groups", "nodes", "partitions", "resolved_at")

    def __init__(
        self, destinations: Destinations, groups: tuple[ShareGroup, ...], account: FanoutAccount, size: int
    ) -> None:
        self.nodes = tuple(destinations.edges)
        self.partitions = tuple(destinations.partitions)
        self.groups = groups
        self.edges: tuple[LoopPeer, ...] = ()
        self.resolved_at = -1
        self._account = account
        self._bytes = size
        account.bytes += size

    def __del__(self) -> None:
        self._account.bytes -= self._bytes


class RouteAnswers:
    """The distinct answers of all cached topics.

    Args:
        node: This edge, which is no destination of its own Routes.
        peer_of: Returns the current peer of an edge.
        groups: The shared groups.
        account: Counts the answers' bytes.
    """

    def __init__(
        self, node: str, peer_of: Callable[[str], LoopPeer | None], groups: SharedGroups, account: FanoutAccount
    ) -> None:
        self._node = node
        self._peer_of = peer_of
        self.groups = groups
        self._account = account
        self._known: WeakValueDictionary[bytes, RouteAnswer] = WeakValueDictionary()
        self._peers_version = 0

    def __len__(self) -> int:
        return len(self._known)

    def find_or_create(self, destinations: Destinations) -> Generator[int, None, RouteAnswer]:
        """Return the answer with exactly these destinations; yield between steps if there are many groups."""
        key = _encoder.encode(destinations)
        answer = self._known.get(key)
        if answer is not None:
            return answer
        groups: list[ShareGroup] = []
        for group in destinations.groups:
            groups.append(self.groups.get(group))
            if len(groups) % GROUPS_PER_STEP == 0:
                yield 1
        answer = RouteAnswer(destinations, tuple(groups), self._account, ANSWER_BYTES + KEY_FACTOR * len(key))
        self._known[key] = answer
        return answer

    def resolve_peers(self, answer: RouteAnswer) -> None:
        """Update the peers of an answer; the tuple of edges stays the same object if they did not change."""
        if answer.resolved_at == self._peers_version:
            return
        answer.resolved_at = self._peers_version
        others = (self._peer_of(node) for node in answer.nodes if node != self._node)
        edges = tuple(peer for peer in others if peer is not None)
        if edges != answer.edges:
            answer.edges = edges

    def peers_changed(self) -> None:
        """Invalidate the peers of all answers after an edge was linked or retired."""
        self._peers_version += 1
        self.groups.peers_changed()
