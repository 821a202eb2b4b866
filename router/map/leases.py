"""The leader's table of leases: which incarnations may act, until when, and which leases have certainly expired.

The leader answers a heartbeat only after a quorum round that began after its arrival. It counts the lease from that
answer, plus a margin; a new leader counts every lease from its own election. After it proposed a death, it answers no
heartbeat of that incarnation. Sans-IO; source: Gray and Cheriton 1989, docs/protocol.md rule 2.4.
"""

from collections.abc import Callable

from wire.messages.cluster_map import ClusterMap, NodeIncarnation
from wire.messages.nodes import Heartbeat

__all__ = ["LeaseTable"]


class LeaseTable:
    """Leases of every live incarnation, at the leader.

    =======  ====================================================  =============================================
    =======  ====================================================  =============================================
    state    meaning                                               transitions
    =======  ====================================================  =============================================
    granted  heartbeats are answered and renew it                  ``stop``; ``record_end``; ``expired``
    stopped  heartbeats are answered without a lease               ``expired``, ``record_end``
    dying    the death is proposed, no renewal                     committed: ``retain_live`` drops it;
                                                                   not committed: as before ``expired``
    =======  ====================================================  =============================================

    An incarnation that is not in the table has no lease of this leader.
    """

    def __init__(self, lease_s: float, margin_s: float) -> None:
        self.lease_s = lease_s
        self._margin_s = margin_s
        self._until: dict[NodeIncarnation, float] = {}
        self._acknowledged: dict[NodeIncarnation, int] = {}  # map epochs
        self._unreachable: dict[NodeIncarnation, tuple[str, ...]] = {}
        self._dying: set[NodeIncarnation] = set()
        self._stopped: set[NodeIncarnation] = set()  # not renewed: too many nodes cannot reach it
        self._beat_at: dict[NodeIncarnation, float] = {}
        self._sizes: dict[NodeIncarnation, dict[int, tuple[int, int]]] = {}  # partition or shard -> keys, bytes
        self._stores_aside: dict[NodeIncarnation, int] = {}
        self._waiting: dict[tuple[str, NodeIncarnation], Heartbeat] = {}  # newest of each link peer, for the next round
        self._asked: dict[int, list[tuple[str, Heartbeat]]] = {}
        self._context = 0
        self._map: ClusterMap | None = None  # map, and its epoch, of ``_live_incarnations``
        self._epoch = -1
        self._live_incarnations: list[NodeIncarnation] = []
        self._checked: list[NodeIncarnation] | None = None  # the last checked list; each has a time in ``_until``
        self._deadline: float | None = None  # cache of ``next_deadline``, until ``_until`` or ``_dying`` changes

    def begin(self, now: float, cluster_map: ClusterMap) -> None:
        """Start as the leader: every lease counts from now."""
        self._until = dict.fromkeys(live_incarnations(cluster_map), now + self.lease_s + self._margin_s)
        self._checked = self._deadline = None
        self._beat_at = dict.fromkeys(self._until, now)
        self._unreachable.clear()
        self._dying.clear()
        self._stopped.clear()
        self._waiting.clear()
        self._asked.clear()

    def add_heartbeat(self, peer: str, beat: Heartbeat, now: float = 0.0, *, fits: bool = True) -> None:
        """Queue a heartbeat for a quorum round that starts from now on.

        Args:
            fits: The acknowledged map does not contradict this log, as far as it is applied here.
        """
        incarnation = (beat.node, beat.incarnation)
        if incarnation not in self._beat_at:
            self._drop_unleased(beat.node)
        self._beat_at[incarnation] = now
        if beat.sizes:
            self._sizes[incarnation] = beat.sizes
        self._stores_aside[incarnation] = beat.stores_aside
        if fits:
            self._acknowledge(incarnation, beat)
        self._unreachable[incarnation] = tuple(beat.unreachable)
        self._waiting.pop((peer, incarnation), None)  # only the newest heartbeat needs an answer
        self._waiting[(peer, incarnation)] = beat

    def _acknowledge(self, incarnation: NodeIncarnation, beat: Heartbeat) -> None:
        self._acknowledged[incarnation] = max(self._acknowledged.get(incarnation, 0), beat.map_epoch)

    def _drop_unleased(self, node: str) -> None:
        """Drop data of a node's other incarnations without a lease here: their number has no bound."""
        unheld = [each for each in self._beat_at if each[0] == node and each not in self._until]
        for table in (self._acknowledged, self._unreachable, self._beat_at, self._sizes, self._stores_aside):
            for incarnation in unheld:
                table.pop(incarnation, None)

    def next_round(self) -> int | None:
        """Return the number of a quorum round to start for queued heartbeats, None if there are none."""
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
        """Return (peer, heartbeat, granted) for each heartbeat of a completed quorum round.

        Args:
            contradicts: Returns whether the map of a heartbeat is not a state of the log. All commits before the
                heartbeat are applied by now. Such a node gets no lease: it may act on an undecided state.
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
        """Drop the heartbeats of a failed quorum round without an answer."""
        self._asked.pop(context, None)

    def admitted(self, now: float, incarnation: NodeIncarnation) -> None:
        """Start the lease of an admitted incarnation: one lease's time until its first heartbeat."""
        self._until[incarnation] = now + self.lease_s + self._margin_s
        self._deadline = None
        self._beat_at[incarnation] = now

    def stop(self, incarnation: NodeIncarnation) -> None:
        """Stop renewing a lease; it expires, and the node is declared dead."""
        self._stopped.add(incarnation)

    @property
    def ending(self) -> bool:
        """True while a stopped lease expires or a death is proposed: one node at a time."""
        return bool(self._stopped or self._dying)

    def record_end(self, incarnation: NodeIncarnation) -> bool:
        """Record that an incarnation ended; the caller proposes its death. False if one is proposed already."""
        if incarnation in self._dying:
            return False
        self._dying.add(incarnation)
        self._deadline = None
        return True

    def silent_s(self, now: float, incarnation: NodeIncarnation) -> float:
        """Return the time since this leader's last heartbeat of an incarnation."""
        return now - self._beat_at.get(incarnation, now)

    def complaints(self, cluster_map: ClusterMap) -> dict[str, tuple[str, ...]]:
        """Return node -> live nodes that it last reported unreachable; empty while a lease is ending."""
        if self.ending:
            return {}
        reports = {
            node: self._unreachable.get((node, incarnation), ()) for node, incarnation in self._live(cluster_map)
        }
        return {node: names for node, names in reports.items() if names}

    def sizes(self, incarnation: NodeIncarnation) -> dict[int, tuple[int, int]]:
        """Return partition or shard -> (keys, bytes), as last reported by the node."""
        return self._sizes.get(incarnation, {})

    def stores_aside(self, incarnation: NodeIncarnation) -> int:
        """Return the number of quarantined stores of a node."""
        return self._stores_aside.get(incarnation, 0)

    def expired(self, now: float, cluster_map: ClusterMap) -> list[NodeIncarnation]:
        """Return incarnations whose lease has certainly expired, once each; the caller proposes their death."""
        live = self._live(cluster_map)
        if live is self._checked and now < self.next_deadline():
            return []
        dead = []
        self._checked, self._deadline = live, None
        for incarnation in live:
            if (
                incarnation not in self._dying
                and self._until.setdefault(incarnation, now + self.lease_s + self._margin_s) <= now
            ):
                self._dying.add(incarnation)
                dead.append(incarnation)
        return dead

    def proposal_failed(self, incarnation: NodeIncarnation) -> None:
        """Allow another proposal after a death was not committed."""
        self._dying.discard(incarnation)
        self._deadline = None

    def has_certainly_expired(self, now: float, incarnation: NodeIncarnation) -> bool:
        """True if this incarnation's lease has certainly expired."""
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
        """Return when the next lease may expire."""
        if self._deadline is None:
            self._deadline = min(
                (until for incarnation, until in self._until.items() if incarnation not in self._dying),
                default=float("inf"),
            )
        return self._deadline

    def _live(self, cluster_map: ClusterMap) -> list[NodeIncarnation]:
        """Return every live incarnation, cached for the map's epoch."""
        if self._map is not cluster_map or self._epoch != cluster_map.epoch:
            self._map, self._epoch, self._live_incarnations = (
                cluster_map,
                cluster_map.epoch,
                live_incarnations(cluster_map),
            )
        return self._live_incarnations

    def retain_live(self, cluster_map: ClusterMap) -> None:
        """Drop data of incarnations that are not alive."""
        live = set(live_incarnations(cluster_map))
        self._checked = self._deadline = None
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
    """Return every live incarnation, in name order."""
    return [(name, entry.incarnation) for name, entry in sorted(cluster_map.nodes.items()) if entry.alive]
