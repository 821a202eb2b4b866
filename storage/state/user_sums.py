"""Sums of what each user has in all partitions of this node, and at other nodes as far as they told it.

A partition asks when a user with a limit wants one more stored session or retained topic. The node asks the others, and
for a minute all of them tell each other what they have of that user: only then, so that what is kept is bounded. Until
they answer the sum is this node's own: no user gets more than its limit at any one node.
Decision: docs/adr/0135-users-over-all-partitions.md.
"""

from collections import OrderedDict
from collections.abc import Collection, Mapping
from itertools import islice
from typing import NamedTuple

__all__ = ["ACTIVE_MAX", "ACTIVE_S", "NAME_MAX", "Retained", "UserSums", "UserUsage", "add_retained"]

ACTIVE_MAX = 4_000  # users of whom nodes tell each other; the one that was idle longest is forgotten
ACTIVE_S = 60.0  # after the last decision about a user
ASK_AGAIN_S = 20.0  # while decisions go on
UNASKED_SHARE = 16  # a node with less than this part of a user's bytes asks nobody: most users change theirs all day
NAME_MAX = 256  # characters; users with longer names have their limits at each node


class UserUsage(NamedTuple):
    """Holdings of a user somewhere."""

    sessions: int = 0
    retained: int = 0
    retained_bytes: int = 0


class Retained(NamedTuple):
    """Retained messages of a user."""

    topics: int = 0
    payload_bytes: int = 0


NOTHING = Retained()


class UserSums:
    """The sums of one node.

    Attributes:
        dirty: Users of whom something is to be told, in order.
    """

    def __init__(self) -> None:
        self._sessions: dict[str, int] = {}
        self._retained: dict[str, Retained] = {}
        self._active: OrderedDict[str, float] = OrderedDict()  # user -> when somebody decided about it last
        self._elsewhere: dict[str, dict[str, UserUsage]] = {}  # of those: node -> what it told
        self._asking: set[str] = set()  # those about whom this node decides
        self._asked_at: dict[str, float] = {}  # of those, when it asked last
        self.dirty: dict[str, None] = {}

    def __len__(self) -> int:
        """Return of how many users nodes tell each other."""
        return len(self._active)

    def __contains__(self, user: str) -> bool:
        """Return whether a user is one of them."""
        return user in self._active

    # --- what is here

    def add_sessions(self, user: str, by: int) -> None:
        """Note that a user has stored sessions more, or fewer."""
        _add(self._sessions, user, by)
        self._changed(user)

    def add_retained(self, user: str, topics: int, payload_bytes: int) -> None:
        """Note that a user has retained topics more, or fewer, and bytes of their payloads."""
        add_retained(self._retained, user, topics, payload_bytes)
        self._changed(user)

    def leave(self, sessions: Mapping[str, int], retained: Mapping[str, Retained]) -> None:
        """Note that a partition is served here no longer."""
        for user, count in sessions.items():
            self.add_sessions(user, -count)
        for user, has in retained.items():
            self.add_retained(user, -has.topics, -has.payload_bytes)

    def here(self, user: str) -> UserUsage:
        """Return what a user has at this node."""
        return UserUsage(self._sessions.get(user, 0), *self._retained.get(user, NOTHING))

    def _changed(self, user: str) -> None:
        if user in self._active:
            self.dirty[user] = None

    # --- the sums

    def sessions(self, user: str, now: float) -> int:
        """Return how many stored sessions a user has, as far as is known; others are asked about it."""
        self._ask(user, now)
        return self._sessions.get(user, 0) + sum(held.sessions for held in self._elsewhere.get(user, {}).values())

    def retained(self, user: str, now: float) -> int:
        """Return how many retained topics a user has, as far as is known; others are asked about it."""
        self._ask(user, now)
        here = self._retained.get(user, NOTHING).topics
        return here + sum(held.retained for held in self._elsewhere.get(user, {}).values())

    def has_room(self, user: str, growth: int, limit: int, now: float) -> bool:
        """Return whether so many bytes of retained payloads more are within a user's limit, as far as is known."""
        here = self._retained.get(user, NOTHING).payload_bytes + growth
        if here * UNASKED_SHARE > limit:
            self._ask(user, now)
        return here + sum(held.retained_bytes for held in self._elsewhere.get(user, {}).values()) <= limit

    def _ask(self, user: str, now: float) -> None:
        if 0 < len(user) <= NAME_MAX:
            self._activate(user, now)
            self._asking.add(user)
            if self._is_due(user, now):
                self.dirty[user] = None

    def _activate(self, user: str, now: float) -> None:
        if now >= self._active.get(user, now) + ACTIVE_S:
            self._forget(user)  # nobody tells of it any more
        self._active[user] = now
        self._active.move_to_end(user)
        if len(self._active) > ACTIVE_MAX:
            self._forget(next(iter(self._active)))

    def _is_due(self, user: str, now: float) -> bool:
        """Whether this node is to ask about a user, the first time or again."""
        return user in self._asking and now >= self._asked_at.get(user, float("-inf")) + ASK_AGAIN_S

    def _forget(self, user: str) -> None:
        del self._active[user]
        self._elsewhere.pop(user, None)
        self._asking.discard(user)
        self._asked_at.pop(user, None)

    # --- what is told

    def told(self, node: str, user: str, held: UserUsage, *, asked: bool, now: float) -> None:
        """Take what another node has of a user."""
        if asked:
            self._activate(user, now)
            self.dirty[user] = None
        if user in self._active:
            self._elsewhere.setdefault(user, {})[node] = held

    def take_dirty(self, most: int, now: float) -> list[tuple[str, bool]]:
        """Return up to so many users of whom something is to be told, and whether others are asked about each."""
        taken = [(user, self._is_due(user, now)) for user in islice(self.dirty, most)]
        for user, asked in taken:
            del self.dirty[user]
            if asked:
                self._asked_at[user] = now
        return taken

    def tell_all(self) -> None:
        """Tell and ask everything again: another node came, or a link to one."""
        self._asked_at.clear()
        self.dirty.update(dict.fromkeys(self._active))

    def look(self, now: float) -> None:
        """Forget users about whom nothing was decided for a minute."""
        while self._active and self._active[user := next(iter(self._active))] + ACTIVE_S <= now:
            self._forget(user)

    def keep_nodes(self, nodes: Collection[str]) -> None:
        """Forget what nodes told that are not alive any more: their partitions come elsewhere, and count there."""
        for held in self._elsewhere.values():
            for node in [node for node in held if node not in nodes]:
                del held[node]


def add_retained(held: dict[str, Retained], user: str, topics: int, payload_bytes: int) -> None:
    """Note what a user has more, or fewer; of one that has nothing is kept nothing."""
    before = held.get(user, NOTHING)
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
