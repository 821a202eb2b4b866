"""Policy commands that wait at the leader until no node acts by the former policy, and nodes that miss its steps.

``access/policy/settling.py`` decides which nodes an epoch waits for; this module feeds it map steps and heartbeats. A
command that is not settled in time is answered with the awaited nodes, and stays in effect. The operator can wait for
it again. Sans-IO. Rules: docs/adr/0034, rules 5, 7 and 8.
"""

import enum
from dataclasses import dataclass
from typing import NamedTuple

from access.policy.settling import PolicySettling
from router.map.proposals import ProposalOrigin
from wire.messages.cluster_map import ClusterMap, MapDelta, NodeEntry, NodeIncarnation
from wire.messages.hello import TIER_EDGE

__all__ = ["CompletedWait", "SettlementWaits", "WaitEnd"]

WAIT_S = 20.0  # of one command
WAITS_MAX = 1_000  # waiting commands; a further one is answered at once as not settled
RECEIVES_S = 5.0  # from the commit of an epoch until a node that did not receive it loses its lease
READS_S = 30.0  # the same for an incarnation that must read a whole view first


class WaitEnd(enum.Enum):
    """Ends of a wait."""

    SETTLED = "settled"
    PARTIAL = "partial"  # some nodes may still act by the former policy
    LOST = "lost"  # this router no longer leads: repeat the order


class CompletedWait(NamedTuple):
    """One completed wait."""

    requester: ProposalOrigin
    epoch: int
    end: WaitEnd
    awaited: list[str]  # awaited nodes, one line each


@dataclass(slots=True)
class _Wait:
    requester: ProposalOrigin
    epoch: int
    until: float


class SettlementWaits:
    """Policy epochs in force at each node, as known to the leader, and the commands that wait for one."""

    def __init__(self) -> None:
        self._settling = PolicySettling()
        self._leads = False
        self._waits: list[_Wait] = []
        self._completed: list[CompletedWait] = []  # to be answered
        self._proved: set[NodeIncarnation] = set()  # ended, by their own message or by their data folder
        self._check_at = float("inf")  # time of the next check; reset by each change
        self._unreceived: dict[NodeIncarnation, tuple[int, float]] = {}  # missing epoch, and its deadline
        self._replaced_map: ClusterMap | None = None  # replaced the former map at an unknown time

    # --- this router's part

    @property
    def leads(self) -> bool:
        """Whether this router leads."""
        return self._leads

    def replaced(self, cluster_map: ClusterMap) -> None:
        """Record that a whole map replaced the former one: earlier ends of incarnations are unknown.

        The clock may not have been read yet, so the map counts from the next known time.
        """
        self._replaced_map = cluster_map

    def start_leading(self, now: float, cluster_map: ClusterMap, epoch: int) -> None:
        """Start as the leader without any acknowledgement, with the ends applied so far."""
        self._begin(now)
        self._leads = True
        self._proved.clear()
        self._settling.elected()
        self._expect_all(now, cluster_map, epoch)

    def _begin(self, now: float) -> None:
        """Start settling from a replaced map."""
        if self._replaced_map is None:
            return
        cluster_map, self._replaced_map = self._replaced_map, None
        followers = [entry for entry in cluster_map.nodes.values() if entry.tier == TIER_EDGE]
        live = {(entry.node, entry.incarnation): entry.fence_close_s for entry in followers if entry.alive}
        self._settling.begin(now, live, max((entry.fence_close_s for entry in followers), default=0.0))

    def _expect_all(self, now: float, cluster_map: ClusterMap, epoch: int) -> None:
        self._end_all(WaitEnd.LOST)
        followers = [entry for entry in cluster_map.nodes.values() if entry.alive and entry.tier == TIER_EDGE]
        self._unreceived = {(entry.node, entry.incarnation): (epoch, now + READS_S) for entry in followers if epoch}

    def end(self) -> None:
        """End all waits, because this router no longer leads."""
        self._leads = False
        self._end_all(WaitEnd.LOST)
        self._unreceived.clear()

    # --- events

    def record_proof(self, incarnation: NodeIncarnation) -> None:
        """Record that an incarnation reported its end, or that its process has provably ended."""
        self._proved.add(incarnation)

    def apply_step(self, now: float, delta: MapDelta, before: dict[str, int], epoch: int) -> None:
        """Record started and ended incarnations of a map step, at every router, at this policy epoch.

        Args:
            before: Node -> its live incarnation before the step.
        """
        self._begin(now)
        self._check_at = now
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
        """Record the next policy epoch, which every follower must receive."""
        if not self._leads:
            return
        for name, entry in cluster_map.nodes.items():
            if entry.alive and entry.tier == TIER_EDGE:
                self._unreceived.setdefault((name, entry.incarnation), (epoch, now + RECEIVES_S))

    def record_heartbeat(
        self, now: float, incarnation: NodeIncarnation, received: int, in_force: int, epoch: int
    ) -> None:
        """Record the policy state of a heartbeat; ``epoch`` is the newest."""
        if not self._leads:
            return
        self._settling.acknowledged(incarnation, min(in_force, received, epoch))
        if self._waits:
            self._check_at = now
        waited = self._unreceived.get(incarnation)
        if waited is None or received < waited[0]:
            return
        if received >= epoch:
            del self._unreceived[incarnation]
        else:  # the stream advances: the next epoch has its own deadline
            self._unreceived[incarnation] = received + 1, now + RECEIVES_S

    # --- questions

    def find_overdue(self, now: float) -> NodeIncarnation | None:
        """Return the incarnation whose missing epoch is overdue for longest, None if there is none."""
        late = [(by, incarnation) for incarnation, (_, by) in self._unreceived.items() if by <= now]
        return min(late)[1] if late else None

    def awaited(self, now: float, epoch: int) -> list[str]:
        """Return the nodes that may still act by the policy before an epoch, one line each."""
        self._begin(now)
        return self._settling.awaited(now, epoch)

    def may_forget(self, now: float, node: str) -> bool:
        """Return whether the map may remove a dead node."""
        self._begin(now)
        return self._settling.may_forget(now, node)

    # --- waits

    def wait(self, now: float, epoch: int, requester: ProposalOrigin) -> None:
        """Wait until an epoch is settled, for WAIT_S at most; ``take_ended`` returns the result."""
        self._begin(now)
        awaited = self._settling.awaited(now, epoch) if self._leads else []
        if not self._leads:
            self._completed.append(CompletedWait(requester, epoch, WaitEnd.LOST, []))
        elif not awaited:
            self._completed.append(CompletedWait(requester, epoch, WaitEnd.SETTLED, []))
        elif len(self._waits) >= WAITS_MAX:
            self._completed.append(CompletedWait(requester, epoch, WaitEnd.PARTIAL, awaited))
        else:
            self._waits.append(_Wait(requester, epoch, now + WAIT_S))
            self._check_at = min(self._check_at, self._settling.next_deadline(now))

    def take_ended(self, now: float) -> list[CompletedWait]:
        """Remove and return the settled and the timed-out waits."""
        self._begin(now)
        if now >= self.next_deadline():
            self._check(now)
        completed, self._completed = self._completed, []
        return completed

    def _check(self, now: float) -> None:
        self._check_at = self._settling.next_deadline(now)
        waits, self._waits = self._waits, []
        awaited = {epoch: self._settling.awaited(now, epoch) for epoch in {wait.epoch for wait in waits}}
        for wait in waits:
            if not awaited[wait.epoch]:
                self._completed.append(CompletedWait(wait.requester, wait.epoch, WaitEnd.SETTLED, []))
            elif now >= wait.until:
                self._completed.append(CompletedWait(wait.requester, wait.epoch, WaitEnd.PARTIAL, awaited[wait.epoch]))
            else:
                self._waits.append(wait)

    def next_deadline(self) -> float:
        """Return when ``take_ended`` must be called."""
        return min(self._check_at, self._waits[0].until) if self._waits else float("inf")

    def _end_all(self, end: WaitEnd) -> None:
        waits, self._waits = self._waits, []
        self._completed += [CompletedWait(wait.requester, wait.epoch, end, []) for wait in waits]
