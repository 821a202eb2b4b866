"""Exchange of users' usage between storage nodes: timing, receivers and message size.

Decision: docs/adr/0135-users-over-all-partitions.md.
"""

from collections.abc import Callable

from storage.hosting.iteration import Iteration
from storage.state.user_sums import UserSums, UserUsage
from wire.messages.cluster_map import ClusterMap
from wire.messages.hello import TIER_STORAGE, PeerKey
from wire.messages.user_counts import COUNTS_MAX, UserCount, UserCounts

__all__ = ["UserUsageReports"]

REPORT_S = 0.1  # between two messages to the same node
IDLE_CHECK_S = 1.0  # interval of the removal of inactive users


class UserUsageReports:
    """The messages of one node about its users.

    Args:
        node: Its name.
        sums: Of its users.
        cluster_map: Returns the map with the other storage nodes.
    """

    def __init__(self, node: str, sums: UserSums, cluster_map: Callable[[], ClusterMap]) -> None:
        self._node = node
        self._sums = sums
        self._map = cluster_map
        self._send_at = float("-inf")
        self._idle_check_at = float("-inf")

    def send_due(self, iteration: Iteration) -> None:
        """Send changed usage."""
        if not self._sums.dirty or iteration.now < self._send_at:
            return
        self._send_at = iteration.now + REPORT_S
        if iteration.now >= self._idle_check_at:
            self._idle_check_at = iteration.now + IDLE_CHECK_S
            self._sums.expire_idle(iteration.now)
        counts = [self._count(user, asked) for user, asked in self._sums.take_dirty(COUNTS_MAX, iteration.now)]
        for entry in self._map().live(TIER_STORAGE):
            if entry.node != self._node:
                iteration.send_control(entry.node, UserCounts(counts))

    def _count(self, user: str, asked: bool) -> UserCount:
        here = self._sums.here(user)
        return UserCount(user, here.sessions, here.retained, asked, here.retained_bytes)

    def take(self, peer: PeerKey, message: UserCounts, now: float) -> None:
        """Store the usage that another storage node reported."""
        for one in message.counts:
            held = UserUsage(one.sessions, one.retained, one.retained_bytes)
            self._sums.told(peer.node, one.user, held, asked=one.asked, now=now)

    @property
    def stale(self) -> bool:
        """Whether usage has to be sent, now or soon."""
        return bool(self._sums.dirty)

    def next_deadline(self) -> float:
        """Return when usage has to be sent."""
        return self._send_at if self._sums.dirty else float("inf")
