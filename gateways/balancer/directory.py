"""Edges that may get clients: what the map says of them, refined by gossip, by failures and by how new they are.

| rule | |
|---|---|
| candidate | active in the map, not draining, with an address of the listener; nothing else makes one |
| skipped | 1 s after a failure, doubling to 5 s |
| last resort | gossip holds it suspect, dead or gone |
| near | with ``prefer = "zone"``: in the zone of the primary of the client's partition, or of this balancer |
| slow start | a newcomer gets twice its share of the clients of a second at most |

Pure; who chooses among what is left is ``choice.py``. Time is passed in.
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
SHARES_MAX = 2  # of a newcomer


@dataclass(frozen=True, slots=True)
class DirectoryRules:
    """Settings of the choice.

    Attributes:
        listeners: Names of listeners that are wanted.
        policy: Among those that are left.
        forward: Which ways there are; *hand_over* wants an edge of this host.
        near: Edges of a zone are preferred.
        zone: Of this balancer.
        slow_start_s: How long an edge is a newcomer.
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
        listener: At which it came.
        key: For sticky policies: client ID or address.
        client_id: "" where it is not known.
        in_clear: The way must be a TCP address: nothing may be handed over.
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
        self._states: dict[str, str] = {}  # of members, as gossip sees them
        self._second, self._picks, self._picks_before = 0, 0, 0  # of this second and the one before
        self._number = 0
        self.map = ClusterMap(cluster="")
        self.in_company = False  # other balancers are about

    # -- what is known

    def map_moved(self, now: float, cluster_map: ClusterMap) -> None:
        """Take the map as it is now: it alone says which edges there are."""
        first = not self.map.cluster
        self.map = cluster_map
        edges: dict[str, Edge] = {}
        for node, entry in sorted(cluster_map.nodes.items()):
            if entry.tier != "edge" or _absence(entry):
                continue
            known = self._edges.get(node)
            if known is None or known.incarnation != entry.incarnation:
                known = Edge(node, entry.incarnation, {}, "", "", 1, NEVER if first else now)
            known.addresses, known.zone, known.weight = entry.clients, entry.zone, entry.weight
            known.socket = self._local(entry.clients[HAND_OVER]) if HAND_OVER in entry.clients else ""
            edges[node] = known
        self._edges = edges
        for listener in self._candidates:
            self._sort_out(listener)

    def _sort_out(self, listener: str) -> None:
        """Divide the edges into candidates of a listener and those that are left out, with the reason."""
        left_out = {
            node: _absence(entry)
            for node, entry in sorted(self.map.nodes.items())
            if entry.tier == "edge" and node not in self._edges
        }
        taken: dict[str, str] = {}
        candidates = []
        for node, edge in self._edges.items():
            reason = self._why_not(edge, listener, taken)
            if reason:
                left_out[node] = reason
            else:
                taken.setdefault(edge.addresses[listener], node)
                candidates.append(edge)
        self._candidates[listener] = tuple(candidates)
        self._left_out[listener] = left_out

    def _why_not(self, edge: Edge, listener: str, taken: Mapping[str, str]) -> str:
        address = edge.addresses.get(listener, "")
        if not address:
            return f"no listener {listener}"
        if self._rules.forward == "hand_over":
            return "" if edge.socket else "not on this host"
        if edge.socket and self._rules.forward == "auto":
            return ""  # its address is not dialled
        if address.rpartition(":")[0] in WILDCARDS:
            return f"nobody can dial {address}: set advertise of its listener"
        return f"has the address of {taken[address]}, {address}" if address in taken else ""

    def member_seen(self, now: float, node: str, state: str, clients: int | None) -> None:
        """Gossip says something of a member; it makes no candidate of anybody.

        Args:
            now: The time.
            node: Its name.
            state: alive, suspect, dead or left.
            clients: How many it told, None where it did not.
        """
        self._states[node] = state
        edge = self._edges.get(node)
        if edge is not None and clients is not None:
            edge.told(now, clients)

    def members_are(self, nodes: Iterable[str]) -> None:
        """Forget what was seen of members that gossip knows no more."""
        kept = set(nodes)
        self._states = {node: state for node, state in self._states.items() if node in kept}

    # -- choosing

    def candidates(self, listener: str) -> Sequence[Edge]:
        """Return the edges that may get clients of a listener, those that are skipped just now included."""
        return self._candidates[listener]

    def left_out(self, listener: str) -> Mapping[str, str]:
        """Return why each other edge is none."""
        return self._left_out[listener]

    def choose(self, now: float, wanted: PlacementRequest) -> Edge | None:
        """Return an edge for a client and count it there, or None while there is none.

        ``took`` or ``failed`` follows.
        """
        self._count_second(now)
        usable = [edge for edge in self._candidates[wanted.listener] if edge.skip_until <= now]
        if wanted.in_clear:
            usable = [edge for edge in usable if edge.addresses[wanted.listener].rpartition(":")[0] not in WILDCARDS]
        usable = self._narrowed(now, usable, wanted)
        if not usable:
            return None
        edge = self._choices[wanted.listener].pick(usable, wanted.key, in_company=self.in_company)
        self._number += 1
        self._picks += 1
        edge.picked(now, self._number)
        return edge

    def _narrowed(self, now: float, usable: list[Edge], wanted: PlacementRequest) -> list[Edge]:
        """Leave out whom a rule leaves out as long as another one is there."""
        usable = [edge for edge in usable if self._states.get(edge.node, ALIVE) == ALIVE] or usable
        if self._rules.near:
            zone = self._zone_of(wanted.client_id)
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

    def _zone_of(self, client_id: str) -> str:
        if client_id and self.map.partitions:
            primary = self.map.partitions[self.map.partition_for(client_id)].primary
            entry = self.map.nodes.get(primary)
            if entry is not None:
                return entry.zone
        return self._rules.zone

    def _count_second(self, now: float) -> None:
        second = int(now)
        if second != self._second:
            self._picks_before = self._picks if second == self._second + 1 else 0
            self._second, self._picks = second, 0

    def failed(self, now: float, edge: Edge) -> None:
        """The edge did not take the client that was picked for it."""
        edge.lost()
        edge.failed(now)


def _absence(entry: NodeEntry) -> str:
    """Return why an edge of the map gets no clients at all, "" if it may."""
    if entry.admin_state:
        return entry.admin_state
    return "" if entry.state == NodeState.ACTIVE else entry.state
