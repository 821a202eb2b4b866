"""Edges that may receive clients: from the map, refined by gossip, failures and slow start.

| rule | |
|---|---|
| candidate | active in the map, not draining, with an address of the listener; no other source adds one |
| skipped | 1 s after a failure, doubling to 5 s |
| last resort | gossip reports it suspect, dead or left |
| near | with ``prefer = "zone"``: in the zone of the primary of the client's partition, or of this balancer |
| slow start | a new edge receives at most twice its share of the clients of a second |

Pure; ``choice.py`` picks among the remaining edges. Time is an argument.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, TypeAlias

from gateways.balancer.choice import Choice, PolicyName
from gateways.balancer.edge import Edge
from wire.messages.cluster_map import ClusterMap, NodeEntry, NodeState
from wire.messages.socket_handoff import HAND_OVER

__all__ = ["Directory", "DirectoryRules", "Forward", "PlacementRequest"]

Forward: TypeAlias = Literal["auto", "hand_over", "redirect", "relay"]
WILDCARDS = ("0.0.0.0", "[::]", "::", "*", "")
ALIVE = "alive"
NEVER = float("-inf")
SHARES_MAX = 2  # of a new edge


@dataclass(frozen=True, slots=True)
class DirectoryRules:
    """Settings of the choice.

    Attributes:
      listeners: Names of the balanced listeners.
      policy: Choice among the remaining edges.
      forward: Allowed forwarding methods; *hand_over* needs an edge on this host.
      near: Edges of a zone are preferred.
      zone: Zone of this balancer.
      slow_start_s: Duration of slow start.
    """

    listeners: tuple[str, ...]
    policy: PolicyName = "least_connections"
    forward: Forward = "auto"
    near: bool = False
    zone: str = ""
    slow_start_s: float = 10.0


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """One client that needs an edge.

    Attributes:
      listener: The listener that accepted it.
      key: Client ID or address, for sticky policies.
      client_id: "" if unknown.
      in_clear: The edge needs a dialled TCP address: the connection cannot be handed over.
    """

    listener: str
    key: str = ""
    client_id: str = ""
    in_clear: bool = False


class Directory:
    """All edges.

    Args:
      rules: Settings.
      local: Returns the path of an edge's hand-over address if that edge is on this host, else "".
      rng: For random choices.
    """

    def __init__(self, rules: DirectoryRules, local: Callable[[str], str], rng: Random) -> None:
        self._rules = rules
        self._local = local
        self._choices = {name: Choice(rules.policy, rng) for name in rules.listeners}
        self._edges: dict[str, Edge] = {}
        self._candidates: dict[str, tuple[Edge, ...]] = dict.fromkeys(rules.listeners, ())
        self._left_out: dict[str, dict[str, str]] = {name: {} for name in rules.listeners}
        self._states: dict[str, str] = {}  # gossip state by member
        self._second, self._picks, self._picks_before = 0, 0, 0  # picks of the current second and of the one before
        self._number = 0
        self.map = ClusterMap(cluster="")
        self.has_peers = False  # other balancers are alive

    # -- inputs

    def map_moved(self, now: float, cluster_map: ClusterMap) -> None:
        """Apply the current map, which alone defines the edges."""
        first = not self.map.cluster
        self.map = cluster_map
        edges: dict[str, Edge] = {}
        for node, entry in sorted(cluster_map.nodes.items()):
            if entry.tier != "edge" or _unavailable_reason(entry):
                continue
            known = self._edges.get(node)
            if known is None or known.incarnation != entry.incarnation:
                known = Edge(node, entry.incarnation, {}, "", "", 1, NEVER if first else now)
            known.addresses, known.zone, known.weight = entry.clients, entry.zone, entry.weight
            known.socket = self._local(entry.clients[HAND_OVER]) if HAND_OVER in entry.clients else ""
            edges[node] = known
        self._edges = edges
        for listener in self._candidates:
            self._classify(listener)

    def _classify(self, listener: str) -> None:
        """Split the edges into candidates of a listener and excluded ones, with the reason."""
        left_out = {
            node: _unavailable_reason(entry)
            for node, entry in sorted(self.map.nodes.items())
            if entry.tier == "edge" and node not in self._edges
        }
        taken: dict[str, str] = {}
        candidates = []
        for node, edge in self._edges.items():
            reason = self._exclusion_reason(edge, listener, taken)
            if reason:
                left_out[node] = reason
            else:
                taken.setdefault(edge.addresses[listener], node)
                candidates.append(edge)
        self._candidates[listener] = tuple(candidates)
        self._left_out[listener] = left_out

    def _exclusion_reason(self, edge: Edge, listener: str, taken: Mapping[str, str]) -> str:
        address = edge.addresses.get(listener, "")
        if not address:
            return f"no listener {listener}"
        if self._rules.forward == "hand_over":
            return "" if edge.socket else "not on this host"
        if edge.socket and self._rules.forward == "auto":
            return ""  # its TCP address is not dialled
        if address.rpartition(":")[0] in WILDCARDS:
            return f"address {address} is not dialable: set advertise of its listener"
        return f"has the address of {taken[address]}, {address}" if address in taken else ""

    def member_seen(self, now: float, node: str, state: str, clients: int | None) -> None:
        """Apply the gossip state of a member; this adds no candidate.

        Args:
          now: The time.
          node: Its name.
          state: alive, suspect, dead or left.
          clients: Reported number of clients, None if not reported.
        """
        self._states[node] = state
        edge = self._edges.get(node)
        if edge is not None and clients is not None:
            edge.update_clients(now, clients)

    def members_are(self, nodes: Iterable[str]) -> None:
        """Remove the states of members that left gossip."""
        kept = set(nodes)
        self._states = {node: state for node, state in self._states.items() if node in kept}

    # -- choice

    def candidates(self, listener: str) -> Sequence[Edge]:
        """Return the edges that may receive clients of a listener, including currently skipped ones."""
        return self._candidates[listener]

    def left_out(self, listener: str) -> Mapping[str, str]:
        """Return the reason by excluded edge."""
        return self._left_out[listener]

    def choose(self, now: float, wanted: PlacementRequest) -> Edge | None:
        """Return an edge for a client and count it there, or None if there is none.

        The caller then calls ``took`` or ``failed``.
        """
        self._advance_second(now)
        usable = [edge for edge in self._candidates[wanted.listener] if edge.skip_until <= now]
        if wanted.in_clear:
            usable = [edge for edge in usable if edge.addresses[wanted.listener].rpartition(":")[0] not in WILDCARDS]
        usable = self._filter_usable(now, usable, wanted)
        if not usable:
            return None
        edge = self._choices[wanted.listener].pick(usable, wanted.key, has_peers=self.has_peers)
        self._number += 1
        self._picks += 1
        edge.picked(now, self._number)
        return edge

    def _filter_usable(self, now: float, usable: list[Edge], wanted: PlacementRequest) -> list[Edge]:
        """Apply each optional rule that leaves at least one edge."""
        usable = [edge for edge in usable if self._states.get(edge.node, ALIVE) == ALIVE] or usable
        if self._rules.near:
            zone = self._get_zone(wanted.client_id)
            usable = [edge for edge in usable if edge.zone == zone] or usable
        settled = [edge for edge in usable if now - edge.since >= self._rules.slow_start_s]
        if settled and len(settled) < len(usable):
            weights = sum(edge.weight for edge in usable)
            picks = max(self._picks, self._picks_before)
            second = int(now)
            usable = [
                edge
                for edge in usable
                if edge in settled or edge.picks_in(second) < max(1.0, SHARES_MAX * picks * edge.weight / weights)
            ]
        return usable

    def _get_zone(self, client_id: str) -> str:
        if client_id and self.map.partitions:
            primary = self.map.partitions[self.map.partition_for(client_id)].primary
            entry = self.map.nodes.get(primary)
            if entry is not None:
                return entry.zone
        return self._rules.zone

    def _advance_second(self, now: float) -> None:
        second = int(now)
        if second != self._second:
            self._picks_before = self._picks if second == self._second + 1 else 0
            self._second, self._picks = second, 0

    def failed(self, now: float, edge: Edge) -> None:
        """Record that the picked edge did not accept the client."""
        edge.lost()
        edge.failed(now)


def _unavailable_reason(entry: NodeEntry) -> str:
    """Return the reason why an edge receives no clients at all, "" if it may."""
    if entry.admin_state:
        return entry.admin_state
    return "" if entry.state == NodeState.ACTIVE else entry.state
