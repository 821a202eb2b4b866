"""Verbs that wait at the leader until nobody acts by what was before them, and the nodes that do not hear of it.

``access/policy/settling.py`` decides whom an epoch waits for; here it is told what the map and the heartbeats say. A
verb that is not settled in time is answered as such, with the names that it waits for, and goes on: asked again, it
waits again. Sans-IO. Rules: docs/adr/0034, rules 5, 7 and 8.
"""

import enum
from dataclasses import dataclass
from typing import NamedTuple

from access.policy.settling import PolicySettling
from router.map.proposals import ProposalOrigin
from wire.messages.cluster_map import ClusterMap, MapDelta, NodeEntry, NodeIncarnation
from wire.messages.hello import TIER_EDGE

__all__ = ["CompletedWait", "VerbWaits", "WaitEnd"]

WAIT_S = 20.0  # of one verb
WAITS_MAX = 1_000  # verbs that wait at once; with more, one is answered at once as not settled
RECEIVES_S = 5.0  # from the commit of an epoch until a node that did not receive it loses its lease
READS_S = 30.0  # the same for an incarnation that has yet to read a whole view


class WaitEnd(enum.Enum):
    """Ends of a wait."""

    SETTLED = "settled"
    PARTIAL = "partial"  # some may still act by what was before
    LOST = "lost"  # this router leads no more: the order is to be repeated


class CompletedWait(NamedTuple):
    """One wait that is over."""

    asker: ProposalOrigin
    epoch: int
    end: WaitEnd
    awaited: list[str]  # who is still waited for, one line each


@dataclass(slots=True)
class _Wait:
    asker: ProposalOrigin
    epoch: int
    until: float


class VerbWaits:
    """Policy epochs by which nodes act, as the leader knows them, and the verbs that wait for one."""

    def __init__(self) -> None:
        self._settling = PolicySettling()
        self._leads = False
        self._waits: list[_Wait] = []
        self._over: list[CompletedWait] = []  # to be answered
        self._proved: set[NodeIncarnation] = set()  # ended, by their own word or that of their data folder
        self._look_at = float("inf")  # something has changed, or the next time is over
        self._unreceived: dict[NodeIncarnation, tuple[int, float]] = {}  # epoch, and by when it has to be there
        self._whole: ClusterMap | None = None  # that took the place of the one before, at a time that is not told

    # --- this router's part

    @property
    def leads(self) -> bool:
        """Whether this router leads."""
        return self._leads

    def replaced(self, cluster_map: ClusterMap) -> None:
        """Another whole map is there: nothing is known of what ended before.

        It may come before this router has read its clock at all, so it counts from the next time that is told.
        """
        self._whole = cluster_map

    def elected(self, now: float, cluster_map: ClusterMap, epoch: int) -> None:
        """This router leads from here: it knows of no acknowledgement, and of the ends that it has applied."""
        self._begin(now)
        self._leads = True
        self._proved.clear()
        self._settling.elected()
        self._expect_all(now, cluster_map, epoch)

    def _begin(self, now: float) -> None:
        """Begin with a map that took the place of the one before."""
        if self._whole is None:
            return
        cluster_map, self._whole = self._whole, None
        followers = [entry for entry in cluster_map.nodes.values() if entry.tier == TIER_EDGE]
        live = {(entry.node, entry.incarnation): entry.fence_close_s for entry in followers if entry.alive}
        self._settling.begin(now, live, max((entry.fence_close_s for entry in followers), default=0.0))

    def _expect_all(self, now: float, cluster_map: ClusterMap, epoch: int) -> None:
        self._end_all(WaitEnd.LOST)
        followers = [entry for entry in cluster_map.nodes.values() if entry.alive and entry.tier == TIER_EDGE]
        self._unreceived = {(entry.node, entry.incarnation): (epoch, now + READS_S) for entry in followers if epoch}

    def end(self) -> None:
        """This router leads no more."""
        self._leads = False
        self._end_all(WaitEnd.LOST)
        self._unreceived.clear()

    # --- what happens

    def proved(self, incarnation: NodeIncarnation) -> None:
        """Note that an incarnation said that it is over, or that its process is proved to have ended."""
        self._proved.add(incarnation)

    def stepped(self, now: float, delta: MapDelta, before: dict[str, int], epoch: int) -> None:
        """Note a step of the map, at every router: incarnations that came and that are over, at this policy epoch.

        Args:
            before: Node -> the incarnation that lived there before the step.
        """
        self._begin(now)
        self._look_at = now
        for name in delta.forgotten:
            self._ended(now, name, before)
        for entry in delta.nodes:
            if entry.tier == TIER_EDGE:
                self._entered(now, entry, before, epoch)

    def _entered(self, now: float, entry: NodeEntry, before: dict[str, int], epoch: int) -> None:
        former = before.get(entry.node)
        if former is not None and (former != entry.incarnation or not entry.alive):
            self._ended(now, entry.node, before)
        if entry.alive and former != entry.incarnation:
            incarnation = (entry.node, entry.incarnation)
            self._settling.admitted(incarnation, entry.fence_close_s, epoch)
            if epoch and self._leads:
                self._unreceived[incarnation] = epoch, now + READS_S

    def _ended(self, now: float, node: str, before: dict[str, int]) -> None:
        former = before.get(node)
        if former is not None:
            incarnation = (node, former)
            self._settling.ended(now, incarnation, proved=incarnation in self._proved)
            self._proved.discard(incarnation)
            self._unreceived.pop(incarnation, None)

    def committed(self, now: float, epoch: int, cluster_map: ClusterMap) -> None:
        """Note the next policy epoch: every follower has to receive it."""
        if not self._leads:
            return
        for name, entry in cluster_map.nodes.items():
            if entry.alive and entry.tier == TIER_EDGE:
                self._unreceived.setdefault((name, entry.incarnation), (epoch, now + RECEIVES_S))

    def heard(self, now: float, incarnation: NodeIncarnation, received: int, in_force: int, epoch: int) -> None:
        """Note what a heartbeat says of the policy; ``epoch`` is the newest."""
        if not self._leads:
            return
        self._settling.acknowledged(incarnation, min(in_force, received, epoch))
        if self._waits:
            self._look_at = now
        waited = self._unreceived.get(incarnation)
        if waited is None or received < waited[0]:
            return
        if received >= epoch:
            del self._unreceived[incarnation]
        else:  # it receives: the next one has its own time
            self._unreceived[incarnation] = received + 1, now + RECEIVES_S

    # --- questions

    def deaf(self, now: float) -> NodeIncarnation | None:
        """Return the incarnation that has owed an epoch for longest and too long, None if none has."""
        late = [(by, incarnation) for incarnation, (_, by) in self._unreceived.items() if by <= now]
        return min(late)[1] if late else None

    def awaited(self, now: float, epoch: int) -> list[str]:
        """Return who may still act by what was before an epoch, one line each."""
        self._begin(now)
        return self._settling.awaited(now, epoch)

    def may_forget(self, now: float, node: str) -> bool:
        """Return whether the map may forget a dead node."""
        self._begin(now)
        return self._settling.may_forget(now, node)

    # --- waits

    def wait(self, now: float, epoch: int, asker: ProposalOrigin) -> None:
        """Wait until an epoch is settled, or for WAIT_S at most; ``take_ended`` tells."""
        self._begin(now)
        awaited = self._settling.awaited(now, epoch) if self._leads else []
        if not self._leads:
            self._over.append(CompletedWait(asker, epoch, WaitEnd.LOST, []))
        elif not awaited:
            self._over.append(CompletedWait(asker, epoch, WaitEnd.SETTLED, []))
        elif len(self._waits) >= WAITS_MAX:
            self._over.append(CompletedWait(asker, epoch, WaitEnd.PARTIAL, awaited))
        else:
            self._waits.append(_Wait(asker, epoch, now + WAIT_S))
            self._look_at = min(self._look_at, self._settling.next_deadline(now))

    def take_ended(self, now: float) -> list[CompletedWait]:
        """Return the waits that are settled, and those that have lasted for too long."""
        self._begin(now)
        if now >= self.next_deadline():
            self._look(now)
        over, self._over = self._over, []
        return over

    def _look(self, now: float) -> None:
        self._look_at = self._settling.next_deadline(now)
        waits, self._waits = self._waits, []
        awaited = {epoch: self._settling.awaited(now, epoch) for epoch in {wait.epoch for wait in waits}}
        for wait in waits:
            if not awaited[wait.epoch]:
                self._over.append(CompletedWait(wait.asker, wait.epoch, WaitEnd.SETTLED, []))
            elif now >= wait.until:
                self._over.append(CompletedWait(wait.asker, wait.epoch, WaitEnd.PARTIAL, awaited[wait.epoch]))
            else:
                self._waits.append(wait)

    def next_deadline(self) -> float:
        """Return when ``take_ended`` has something to look at."""
        return min(self._look_at, self._waits[0].until) if self._waits else float("inf")

    def _end_all(self, end: WaitEnd) -> None:
        waits, self._waits = self._waits, []
        self._over += [CompletedWait(wait.asker, wait.epoch, end, []) for wait in waits]
