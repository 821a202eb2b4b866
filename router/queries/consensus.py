"""Consensus as one router knows it: its log, its peers, and, at the leader, leases and acknowledged maps."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from router.map.leases import LeaseTable, live_incarnations
from router.raft.core import RaftCore
from wire.messages.cluster_map import ClusterMap
from wire.queries.source import Columns, Place, RowScan, RowSource

__all__ = ["consensus_source"]


class LeaderView(Protocol):
    """The parts of a router's core that consensus rows show."""

    leases: LeaseTable
    leads: bool

    @property
    def now(self) -> float:
        """Time of the iteration."""

    @property
    def shards(self) -> Mapping[int, object]:
        """Shards owned here."""


def consensus_source(node: str, raft: RaftCore, core: LeaderView, cluster_map: Callable[[], ClusterMap]) -> RowSource:
    """Return the source of the consensus query: one row."""

    def walk(_: RowScan) -> Iterator[tuple[Place, Any]]:
        yield 1, raft

    def leading(read: Callable[[], object]) -> Callable[[Any], object]:
        return lambda _: read() if core.leads else None

    def last_seen_ms() -> dict[str, int]:
        return {peer: int((raft.now - one.last_seen) * 1000) for peer, one in raft.progress.items()}

    def live() -> list[tuple[str, tuple[str, int]]]:
        return [(one[0], one) for one in live_incarnations(cluster_map())]

    def leases() -> dict[str, float]:
        return {name: round(core.leases.remaining_s(core.now, one), 2) for name, one in live()}

    columns: Columns = {
        "node": lambda _: node,
        "state": lambda one: _state(one, node),
        "term": lambda one: one.term,
        "leader": lambda one: one.leader or "",
        "voted_for": lambda one: one.voted_for or "",
        "last_index": lambda one: one.log.last_index,
        "commit_index": lambda one: one.commit_index,
        "applied_index": lambda one: one.last_applied,
        "snapshot_index": lambda one: one.log.base_index,
        "voters": lambda one: sorted(one.configuration.voters),
        "learners": lambda one: _learners(one.configuration.peers(), one.configuration.voters),
        "match": leading(lambda: {peer: one.match_index for peer, one in raft.progress.items()}),
        "heard_ms": leading(last_seen_ms),
        "leases": leading(leases),
        "epochs": leading(lambda: {name: core.leases.acknowledged(one) for name, one in live()}),
        "shards": lambda _: sorted(core.shards),
    }
    return RowSource(walk, columns)


def _state(raft: RaftCore, node: str) -> str:
    role = raft.role.value
    return "learner" if role == "follower" and node not in raft.configuration.voters else str(role)


def _learners(peers: Iterable[str], voters: Iterable[str]) -> list[str]:
    return sorted(set(peers) - set(voters))
