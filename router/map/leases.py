"""The leader's table of leases: who may act, until when, and who has surely lost the right.

The leader answers a heartbeat only after a quorum round that began after it arrived, and counts the lease from that
answer plus a margin; a new leader counts every lease from its own election. From the proposal of a death on it answers
no heartbeat of that incarnation. Sans-IO; source: Gray and Cheriton 1989, docs/protocol.md rule 2.4.
"""

from collections.abc import Callable

from wire.messages.cluster_map import ClusterMap, NodeIncarnation
from wire.messages.nodes import Heartbeat

__all__ = ["LeaseTable"]


class LeaseTable:
    """Leases of every live incarnation, at the leader.

    =======  ====================================================  =============================================
    state    holds                                                 way out
    =======  ====================================================  =============================================
    granted  heartbeats are answered and renew it                  ``stop``; ``leaves``; ``expired``
    stopped  heartbeats are answered without a lease: it runs out  ``expired``, ``leaves``
    dying    the death is proposed, nothing renews it              committed: ``forget_others`` drops it;
                                                                   not committed: as before ``expired``
    =======  ====================================================  =============================================

    An incarnation that the table does not have holds no lease that this leader could have granted.
    """

    def __init__(self, lease_s: float, margin_s: float) -> None:
        self.lease_s = lease_s
        self._margin_s = margin_s
        self._until: dict[NodeIncarnation, float] = {}
        self._acknowledged: dict[NodeIncarnation, int] = {}  # map epochs
        self._unreachable: dict[NodeIncarnation, tuple[str, ...]] = {}
        self._dying: set[NodeIncarnation] = set()
        self._stopped: set[NodeIncarnation] = set()  # not renewed any more: too many wait for it in vain
        self._beat_at: dict[NodeIncarnation, float] = {}
        self._sizes: dict[NodeIncarnation, dict[int, tuple[int, int]]] = {}  # partition or shard -> keys, bytes
        self._stores_aside: dict[NodeIncarnation, int] = {}
        self._waiting: dict[tuple[str, NodeIncarnation], Heartbeat] = {}  # by link peer, the newest: for the next round
        self._asked: dict[int, list[tuple[str, Heartbeat]]] = {}
        self._context = 0
        self._map: ClusterMap | None = None  # of which, and at which epoch, ``_live_ones`` are
        self._epoch = -1
        self._live_ones: list[NodeIncarnation] = []
        self._looked_at: list[NodeIncarnation] | None = None  # of those, each has a time in ``_until``
        self._deadline: float | None = None  # of ``next_deadline``, until ``_until`` or ``_dying`` change

    def begin(self, now: float, cluster_map: ClusterMap) -> None:
        """This router became the leader: every lease counts from here."""
        self._until = dict.fromkeys(live_incarnations(cluster_map), now + self.lease_s + self._margin_s)
        self._looked_at = self._deadline = None
        self._beat_at = dict.fromkeys(self._until, now)
        self._unreachable.clear()
        self._dying.clear()
        self._stopped.clear()
        self._waiting.clear()
        self._asked.clear()

    def arrived(self, peer: str, beat: Heartbeat, now: float = 0.0, *, fits: bool = True) -> None:
        """A heartbeat came; it is answered after a quorum round that starts from now on.

        Args:
            fits: The map that it acknowledges is no other than a state of this log, as far as it is applied here.
        """
        incarnation = (beat.node, beat.incarnation)
        if incarnation not in self._beat_at:
            self._forget_unheld(beat.node)
        self._beat_at[incarnation] = now
        if beat.sizes:
            self._sizes[incarnation] = beat.sizes
        self._stores_aside[incarnation] = beat.stores_aside
        if fits:
            self._acknowledge(incarnation, beat)
        self._unreachable[incarnation] = tuple(beat.unreachable)
        self._waiting.pop((peer, incarnation), None)  # it wants one answer, and has the most of the newest
        self._waiting[(peer, incarnation)] = beat

    def _acknowledge(self, incarnation: NodeIncarnation, beat: Heartbeat) -> None:
        self._acknowledged[incarnation] = max(self._acknowledged.get(incarnation, 0), beat.map_epoch)

    def _forget_unheld(self, node: str) -> None:
        """Forget what other incarnations of a node without a lease here said: they may be any number."""
        unheld = [each for each in self._beat_at if each[0] == node and each not in self._until]
        for table in (self._acknowledged, self._unreachable, self._beat_at, self._sizes, self._stores_aside):
            for incarnation in unheld:
                table.pop(incarnation, None)

    def next_round(self) -> int | None:
        """Return the number of a quorum round to start for the heartbeats that wait, None if none does."""
        if not self._waiting or len(self._asked) >= 4:
            return None
        self._context += 1
        self._asked[self._context] = [(peer, beat) for (peer, _), beat in self._waiting.items()]
        self._waiting.clear()
        return self._context

    def round_done(
        self,
        now: float,
        context: int,
        cluster_map: ClusterMap,
        contradicts: Callable[[Heartbeat], bool] = lambda _: False,
    ) -> list[tuple[str, Heartbeat, bool]]:
        """A quorum round ended: return (peer, heartbeat, granted) for each that it answers.

        Args:
            contradicts: Returns whether the map of a heartbeat is no state of the log, of which all that was committed
                before the heartbeat came is applied now. Such a node gets no lease: it may act by what nobody decided.
        """
        answers = []
        self._deadline = None
        for peer, beat in self._asked.pop(context, []):
            incarnation = (beat.node, beat.incarnation)
            wrong = contradicts(beat)
            if not wrong:
                self._acknowledge(incarnation, beat)
            granted = (
                not wrong
                and cluster_map.is_alive(*incarnation)
                and incarnation not in self._dying
                and incarnation not in self._stopped
            )
            if granted:
                self._until[incarnation] = max(self._until.get(incarnation, 0.0), now + self.lease_s + self._margin_s)
            answers.append((peer, beat, granted))
        return answers

    def round_failed(self, context: int) -> None:
        """A quorum round gave no answer; its heartbeats are not answered either."""
        self._asked.pop(context, None)

    def admitted(self, now: float, incarnation: NodeIncarnation) -> None:
        """An incarnation was committed as active: it has one lease's time to send its first heartbeat."""
        self._until[incarnation] = now + self.lease_s + self._margin_s
        self._deadline = None
        self._beat_at[incarnation] = now

    def stop(self, incarnation: NodeIncarnation) -> None:
        """Renew this lease no more: it runs out, and the node is declared dead."""
        self._stopped.add(incarnation)

    @property
    def ending(self) -> bool:
        """True while some lease is left to run out, or a death is proposed: one node at a time."""
        return bool(self._stopped or self._dying)

    def leaves(self, incarnation: NodeIncarnation) -> bool:
        """An incarnation says that it is over; the caller proposes its death. False if that was proposed already."""
        if incarnation in self._dying:
            return False
        self._dying.add(incarnation)
        self._deadline = None
        return True

    def silent_s(self, now: float, incarnation: NodeIncarnation) -> float:
        """Return for how long this leader has had no heartbeat of an incarnation."""
        return now - self._beat_at.get(incarnation, now)

    def complaints(self, cluster_map: ClusterMap) -> dict[str, tuple[str, ...]]:
        """Return node -> live nodes that it does not reach, as it said last; nothing while a lease is ending."""
        if self.ending:
            return {}
        told = {node: self._unreachable.get((node, incarnation), ()) for node, incarnation in self._live(cluster_map)}
        return {node: names for node, names in told.items() if names}

    def sizes(self, incarnation: NodeIncarnation) -> dict[int, tuple[int, int]]:
        """Return partition or shard -> (keys, bytes) as the node said last."""
        return self._sizes.get(incarnation, {})

    def stores_aside(self, incarnation: NodeIncarnation) -> int:
        """Return how many damaged stores the node keeps aside."""
        return self._stores_aside.get(incarnation, 0)

    def expired(self, now: float, cluster_map: ClusterMap) -> list[NodeIncarnation]:
        """Return incarnations whose lease has surely run out, once each; the caller proposes their death."""
        live = self._live(cluster_map)
        if live is self._looked_at and now < self.next_deadline():
            return []
        dead = []
        self._looked_at, self._deadline = live, None
        for incarnation in live:
            if (
                incarnation not in self._dying
                and self._until.setdefault(incarnation, now + self.lease_s + self._margin_s) <= now
            ):
                self._dying.add(incarnation)
                dead.append(incarnation)
        return dead

    def proposal_failed(self, incarnation: NodeIncarnation) -> None:
        """A proposed death was not committed; it may be proposed again."""
        self._dying.discard(incarnation)
        self._deadline = None

    def surely_over(self, now: float, incarnation: NodeIncarnation) -> bool:
        """True if this incarnation's lease has surely run out."""
        return self._until.get(incarnation, 0.0) <= now

    def settled_epoch(self, cluster_map: ClusterMap) -> int:
        """Return the highest epoch that every live incarnation has acknowledged."""
        return min(
            [cluster_map.epoch, *(self._acknowledged.get(incarnation, 0) for incarnation in self._live(cluster_map))]
        )

    def remaining_s(self, now: float, incarnation: NodeIncarnation) -> float:
        """Return seconds of lease left, for the status page; below 0 after its end."""
        return self._until.get(incarnation, now) - now

    def acknowledged(self, incarnation: NodeIncarnation) -> int:
        """Return the map epoch that an incarnation has acknowledged."""
        return self._acknowledged.get(incarnation, 0)

    def next_deadline(self) -> float:
        """Return when the next lease may run out."""
        if self._deadline is None:
            self._deadline = min(
                (until for incarnation, until in self._until.items() if incarnation not in self._dying),
                default=float("inf"),
            )
        return self._deadline

    def _live(self, cluster_map: ClusterMap) -> list[NodeIncarnation]:
        """Return every live incarnation; asked in every turn, and another one only at another epoch."""
        if self._map is not cluster_map or self._epoch != cluster_map.epoch:
            self._map, self._epoch, self._live_ones = cluster_map, cluster_map.epoch, live_incarnations(cluster_map)
        return self._live_ones

    def forget_others(self, cluster_map: ClusterMap) -> None:
        """Drop what belongs to incarnations that are not alive any more."""
        live = set(live_incarnations(cluster_map))
        self._looked_at = self._deadline = None
        for table in (
            self._until,
            self._acknowledged,
            self._unreachable,
            self._beat_at,
            self._sizes,
            self._stores_aside,
        ):
            for incarnation in [incarnation for incarnation in table if incarnation not in live]:
                del table[incarnation]
        self._dying &= live
        self._stopped &= live


def live_incarnations(cluster_map: ClusterMap) -> list[NodeIncarnation]:
    """Return every live incarnation, by name."""
    return [(name, entry.incarnation) for name, entry in sorted(cluster_map.nodes.items()) if entry.alive]
