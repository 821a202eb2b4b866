"""Usage of each user over all partitions of this node, and at other nodes as far as they reported it.

A partition requests a sum when a user with a limit adds a stored session or a retained topic. The node then queries
the others, and for a minute all nodes report their usage of that user to each other. Only active users are reported,
so the memory is bounded. Until the others reply the sum is this node's own: a user never exceeds its limit at any one
node.

Decision: docs/adr/0135-users-over-all-partitions.md.
"""

from collections import OrderedDict
from collections.abc import Collection, Mapping
from itertools import islice
from typing import NamedTuple

__all__ = ["ACTIVE_MAX", "ACTIVE_S", "NAME_MAX", "Retained", "UserSums", "UserUsage", "add_retained"]

ACTIVE_MAX = 4_000  # users whose usage nodes exchange; the one that was idle longest is removed
ACTIVE_S = 60.0  # after the last decision about a user
ASK_AGAIN_S = 20.0  # interval of queries while the user is active
# Below this fraction of a user's byte limit a node sends no query: most users change their bytes constantly
UNASKED_SHARE = 16
NAME_MAX = 256  # characters; users with longer names have their limits at each node


class UserUsage(NamedTuple):
    """Usage of one user at one node."""

    sessions: int = 0
    retained: int = 0
    retained_bytes: int = 0


class Retained(NamedTuple):
    """Retained messages of a user."""

    topics: int = 0
    payload_bytes: int = 0


NO_RETAINED = Retained()


class UserSums:
    """The sums of one node.

    Attributes:
        dirty: Users with usage to report, in order.
    """

    def __init__(self) -> None:
        self._sessions: dict[str, int] = {}
        self._retained: dict[str, Retained] = {}
        self._active: OrderedDict[str, float] = OrderedDict()  # user -> time of its last decision at any node
        self._elsewhere: dict[str, dict[str, UserUsage]] = {}  # user -> node -> reported usage
        self._asking: set[str] = set()  # users about whom this node decides
        self._requested_at: dict[str, float] = {}  # user -> time of the last query
        self.dirty: dict[str, None] = {}

    def __len__(self) -> int:
        """Return the number of users whose usage nodes exchange."""
        return len(self._active)

    def __contains__(self, user: str) -> bool:
        """Return whether nodes exchange a user's usage."""
        return user in self._active

    # --- usage at this node

    def add_sessions(self, user: str, by: int) -> None:
        """Change the number of a user's stored sessions."""
        _add(self._sessions, user, by)
        self._changed(user)

    def add_retained(self, user: str, topics: int, payload_bytes: int) -> None:
        """Change the number of a user's retained topics and the bytes of their payloads."""
        add_retained(self._retained, user, topics, payload_bytes)
        self._changed(user)

    def leave(self, sessions: Mapping[str, int], retained: Mapping[str, Retained]) -> None:
        """Subtract a partition that this node no longer serves."""
        for user, count in sessions.items():
            self.add_sessions(user, -count)
        for user, has in retained.items():
            self.add_retained(user, -has.topics, -has.payload_bytes)

    def here(self, user: str) -> UserUsage:
        """Return a user's usage at this node."""
        return UserUsage(self._sessions.get(user, 0), *self._retained.get(user, NO_RETAINED))

    def _changed(self, user: str) -> None:
        if user in self._active:
            self.dirty[user] = None

    # --- the sums

    def sessions(self, user: str, now: float) -> int:
        """Return a user's known number of stored sessions, and query the other nodes."""
        self._request_usage(user, now)
        return self._sessions.get(user, 0) + sum(held.sessions for held in self._elsewhere.get(user, {}).values())

    def retained(self, user: str, now: float) -> int:
        """Return a user's known number of retained topics, and query the other nodes."""
        self._request_usage(user, now)
        here = self._retained.get(user, NO_RETAINED).topics
        return here + sum(held.retained for held in self._elsewhere.get(user, {}).values())

    def is_within_limit(self, user: str, growth: int, limit: int, now: float) -> bool:
        """Return whether that many more bytes of retained payloads are within a user's limit, as far as known."""
        here = self._retained.get(user, NO_RETAINED).payload_bytes + growth
        if here * UNASKED_SHARE > limit:
            self._request_usage(user, now)
        return here + sum(held.retained_bytes for held in self._elsewhere.get(user, {}).values()) <= limit

    def _request_usage(self, user: str, now: float) -> None:
        if 0 < len(user) <= NAME_MAX:
            self._activate(user, now)
            self._asking.add(user)
            if self._is_due(user, now):
                self.dirty[user] = None

    def _activate(self, user: str, now: float) -> None:
        if now >= self._active.get(user, now) + ACTIVE_S:
            self._forget(user)  # nodes no longer report it
        self._active[user] = now
        self._active.move_to_end(user)
        if len(self._active) > ACTIVE_MAX:
            self._forget(next(iter(self._active)))

    def _is_due(self, user: str, now: float) -> bool:
        """Return whether this node has to query the others about a user, for the first time or again."""
        return user in self._asking and now >= self._requested_at.get(user, float("-inf")) + ASK_AGAIN_S

    def _forget(self, user: str) -> None:
        del self._active[user]
        self._elsewhere.pop(user, None)
        self._asking.discard(user)
        self._requested_at.pop(user, None)

    # --- exchange of usage

    def told(self, node: str, user: str, held: UserUsage, *, asked: bool, now: float) -> None:
        """Store another node's usage of a user."""
        if asked:
            self._activate(user, now)
            self.dirty[user] = None
        if user in self._active:
            self._elsewhere.setdefault(user, {})[node] = held

    def take_dirty(self, most: int, now: float) -> list[tuple[str, bool]]:
        """Return up to ``most`` users with usage to report, and whether to query the others about each."""
        taken = [(user, self._is_due(user, now)) for user in islice(self.dirty, most)]
        for user, asked in taken:
            del self.dirty[user]
            if asked:
                self._requested_at[user] = now
        return taken

    def tell_all(self) -> None:
        """Report and query all active users again, after a node joined or a link opened."""
        self._requested_at.clear()
        self.dirty.update(dict.fromkeys(self._active))

    def expire_idle(self, now: float) -> None:
        """Remove users without a decision for a minute."""
        while self._active and self._active[user := next(iter(self._active))] + ACTIVE_S <= now:
            self._forget(user)

    def retain_nodes(self, nodes: Collection[str]) -> None:
        """Remove usage reported by dead nodes: other nodes serve their partitions and count them."""
        for held in self._elsewhere.values():
            for node in [node for node in held if node not in nodes]:
                del held[node]


def add_retained(held: dict[str, Retained], user: str, topics: int, payload_bytes: int) -> None:
    """Change a user's retained usage; a user without retained topics is removed."""
    before = held.get(user, NO_RETAINED)
    after = Retained(before.topics + topics, before.payload_bytes + payload_bytes)
    if after.topics:
        held[user] = after
    else:
        held.pop(user, None)


def _add(counts: dict[str, int], user: str, by: int) -> None:
    count = counts.get(user, 0) + by
    if count:
        counts[user] = count
    else:
        counts.pop(user, None)
