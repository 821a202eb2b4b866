"""The faults of one seed: drawn before it begins, as a list that can be shortened and replayed.

A fault begins at one time and ends at another; targets are names, so that a list stays valid without some of its parts.
*Swarm*: each seed uses a random subset of the kinds.
"""

import random
from dataclasses import dataclass

from router.map.commands import SetAdminState
from stratamq.history.operations import Kind
from tests.simulation.cluster import Cluster
from tests.simulation.router_process import RouterProcess
from tests.simulation.storage_process import StorageProcess

__all__ = [
    "KINDS",
    "Fault",
    "draw_drains",
    "draw_faults",
    "draw_freezes",
    "draw_hardware_faults",
    "draw_stops",
    "inflict",
]

ASK_AGAIN_S = 0.2  # retry interval of an operator without a leader, or whose order was lost

KINDS = (
    "kill",
    "power",
    "replace",
    "pause",
    "cut",
    "one_way",
    "isolate",
    "reset",
    "slow_link",
    "slow_disk",
    "sync_error",
    "client_cut",
    "client_reset",
    "tier_down",
    "stop_stream",
)


@dataclass(frozen=True)
class Fault:
    """One fault, which ends at ``until``."""

    at: float  # seconds from the beginning of the work
    until: float
    kind: str
    target: str
    other: str = ""
    amount: float = 0.0

    def __str__(self) -> str:
        other = f"-{self.other}" if self.other else ""
        return f"{self.at:.3f}..{self.until:.3f} {self.kind} {self.target}{other} {self.amount:.3f}"


def draw_faults(rng: random.Random, cluster: Cluster, seconds: float) -> list[Fault]:
    """Draw the faults of one seed."""
    kinds = [kind for kind in KINDS if rng.random() < 0.45] or [rng.choice(KINDS)]
    every_s = rng.choice((1.0, 2.0, 4.0, 8.0))
    nodes = list(cluster.nodes)
    clients = list(cluster.clients)
    faults = []
    at = rng.expovariate(1 / every_s)
    while at < seconds:
        faults.append(_draw(rng, rng.choice(kinds), at, nodes, clients))
        if rng.random() < 0.2:  # a second one right after it
            faults.append(_draw(rng, rng.choice(kinds), at + rng.uniform(0.0, 0.3), nodes, clients))
        at += rng.expovariate(1 / every_s)
    return sorted(faults, key=lambda fault: (fault.at, fault.kind, fault.target, fault.other))


def _draw(rng: random.Random, kind: str, at: float, nodes: list[str], clients: list[str]) -> Fault:
    target = rng.choice(nodes)
    others = [node for node in nodes if node != target]
    other = rng.choice(others)
    lasts = rng.choice((rng.uniform(0.01, 0.2), rng.uniform(0.2, 2.0), rng.uniform(2.0, 8.0)))
    amount = 0.0
    if kind in ("kill", "power", "replace"):
        other = ""
    elif kind == "tier_down":
        target, other = rng.choice(("r", "s", "e")), rng.choice(("kill", "power"))
    elif kind in ("pause", "isolate", "stop_stream"):
        other = ""
    elif kind in ("slow_disk", "sync_error"):
        target, other = rng.choice([node for node in nodes if node.startswith("s")]), ""
        amount = rng.choice((0.005, 0.05, 0.5))
    elif kind == "slow_link":
        amount = rng.choice((0.005, 0.05, 0.3))
    elif kind in ("client_cut", "client_reset"):
        target, other = rng.choice(clients), rng.choice([node for node in nodes if node.startswith("e")])
    return Fault(at, at + lasts, kind, target, other, amount)


def draw_hardware_faults(rng: random.Random, cluster: Cluster, seconds: float) -> list[Fault]:
    """Draw further disk faults and lost maps, separately so that the other faults of a seed stay unchanged.

    Bits of one node are flipped, once, and only with three copies. Deaths of the others may leave it as the last
    in-sync replica: damage found then is more than a single fault, without a guarantee (``holds_last_copy``).
    """
    storages = [name for name, node in cluster.nodes.items() if isinstance(node, StorageProcess)]
    faults = []
    for _ in range(rng.randrange(3)):
        at = rng.uniform(0.0, seconds)
        faults.append(Fault(at, at + rng.choice((0.1, 1.0, 6.0)), "full_disk", rng.choice(storages)))
    if cluster.knobs.replicas >= 3 and cluster.knobs.min_in_sync >= 2 and rng.random() < 0.7:
        at = rng.uniform(0.0, seconds)
        faults.append(Fault(at, at + rng.uniform(0.01, 2.0), "flip_bits", rng.choice(storages), "", rng.choice((1, 8))))
    for _ in range(rng.randrange(3)):
        at = rng.uniform(0.0, seconds)
        faults.append(Fault(at, at + rng.choice((0.1, 1.0, 9.0)), "lose_map", rng.choice(storages)))
    return faults


def draw_stops(rng: random.Random, cluster: Cluster, seconds: float) -> list[Fault]:
    """Draw SIGTERM for nodes and tiers, separately so that the other faults of a seed stay unchanged. A node restarts
    after a while; one that has not ended by then is killed first.
    """
    names = list(cluster.nodes)
    faults = []
    for _ in range(rng.randrange(2, 7)):
        at, lasts = rng.uniform(0.0, seconds), rng.choice((0.05, 1.0, 4.0, 8.0))
        target = rng.choice(("r", "s", "s", "e")) if rng.random() < 0.3 else rng.choice(names)
        faults.append(Fault(at, at + lasts * rng.uniform(0.5, 1.0), "stop", target))
    return faults


def draw_drains(rng: random.Random, cluster: Cluster, seconds: float) -> list[Fault]:
    """Draw drains of edges, separately so that the other faults of a seed stay unchanged.

    They are undone at once, while clients leave, or afterwards; an edge that is killed meanwhile restarts drained.
    """
    edges = [name for name in cluster.nodes if name[0] == "e"]
    faults = []
    at = rng.uniform(0.0, 1.0)
    while at < seconds:
        lasts = rng.choice((rng.uniform(0.0, 3.0), rng.uniform(3.0, 5.0), rng.uniform(5.0, 9.0)))
        target = rng.choice(edges)
        faults.append(Fault(at, at + lasts, "drain", target))
        if rng.random() < 0.25:
            killed = at + rng.uniform(0.0, lasts)
            faults.append(Fault(killed, killed + rng.uniform(0.01, 1.0), "kill", target))
        at += rng.uniform(0.5, 4.0)
    return faults


def order_drain(cluster: Cluster, edge: str, state: str) -> None:
    """Set an edge to "draining" or not (""), with retries until the map shows it."""
    cluster.draining[edge] = state
    _ask_again(cluster, edge, state)


def _ask_again(cluster: Cluster, edge: str, state: str) -> None:
    if cluster.draining.get(edge) != state:
        return  # superseded by another order
    leaders = [
        node for node in cluster.nodes.values() if isinstance(node, RouterProcess) and node.up and node.core.leads
    ]
    for leader in leaders:
        entry = leader.core.machine.map.nodes.get(edge)
        if entry is not None and entry.admin_state == state:
            return
        leader.core.propose(SetAdminState(edge, state))
        leader.poke()
    cluster.scheduler.at(cluster.scheduler.now + ASK_AGAIN_S, _ask_again, cluster, edge, state)


def draw_freezes(rng: random.Random, cluster: Cluster, seconds: float) -> list[Fault]:
    """Draw SIGSTOP for edges and storage nodes, at points of their iterations, overlapping, about as long as a lease or
    its fence time; and kills right before and after them. Separately, so that the other faults of a seed stay
    unchanged.
    """
    names = [name for name in cluster.nodes if name[0] in "se"]
    faults = []
    at = rng.uniform(0.0, 2.0)
    while at < seconds:
        tier = rng.choice("see")
        target = rng.choice([name for name in names if name[0] == tier])
        if rng.random() < 0.25:
            faults.append(Fault(at, at + rng.uniform(0.01, 1.0), "kill", target))
        else:
            lasts = rng.choice((rng.uniform(0.2, 2.0), rng.uniform(1.8, 6.0)))
            faults.append(Fault(at, at + lasts, "freeze", target, rng.choice(("read", "flush", ""))))
        at += rng.choice((rng.uniform(0.0, 1.0), rng.uniform(1.0, 5.0)))
    return faults


def inflict(cluster: Cluster, faults: list[Fault], start: float) -> None:
    """Schedule a list of faults."""
    for fault in faults:
        cluster.scheduler.at(start + fault.at, _begin, cluster, fault)
        cluster.scheduler.at(start + fault.until, _finish, cluster, fault)


def heal(cluster: Cluster) -> None:
    """End all faults that may be active; later begins and ends are cancelled."""
    cluster.faults_over = True
    for edge in list(cluster.draining):
        order_drain(cluster, edge, "")
    for name, node in cluster.nodes.items():
        node.resume()
        if isinstance(node, StorageProcess):
            node.slow_s = 0.0
            node.disk.full = node.loses_map = False
        cluster.start_anew(name)
    cluster.network.heal()


def _jammed_links(cluster: Cluster, fault: Fault) -> list[tuple[str, str]]:
    """Return the directed links that a fault jams."""
    target, other = fault.target, fault.other
    others = [name for name in cluster.nodes if name != target]
    match fault.kind:
        case "cut" | "client_cut":
            return [(target, other), (other, target)]
        case "one_way":
            return [(target, other)]
        case "isolate":
            return [link for name in others for link in ((target, name), (name, target))]
        case "stop_stream":
            return [(name, target) for name in others]
        case _:
            return []


def _begin(cluster: Cluster, fault: Fault) -> None:
    if cluster.faults_over:
        return
    cluster.scheduler.note(f"fault: {fault}")
    lethal = fault.kind in ("kill", "stop", "power", "replace", "tier_down", "sync_error", "flip_bits")
    cluster.mark(Kind.KILL if lethal else Kind.FAULT, fault.target, fault.kind)
    kind, target, other = fault.kind, fault.target, fault.other
    network = cluster.network
    for link in _jammed_links(cluster, fault):
        network.jam(*link)
    if kind in ("kill", "power", "replace"):
        cluster.kill(target, power=kind == "power")
    elif kind == "stop":
        for name in cluster.nodes:
            if name.startswith(target):
                cluster.stop(name)
    elif kind == "tier_down":
        for name in cluster.nodes:
            if name.startswith(target):
                cluster.kill(name, power=other == "power")
    elif kind == "pause" or (kind == "freeze" and not other):
        cluster.nodes[target].pause()
    elif kind == "freeze":
        cluster.nodes[target].pause_within(other)
    elif kind in ("reset", "client_reset"):
        network.break_between(target, other)
    elif kind == "slow_link":
        network.slow[target, other] = fault.amount
    elif kind == "slow_disk":
        cluster.storage(target).slow_s = fault.amount
    elif kind == "sync_error":
        cluster.storage(target).disk.fail_sync = True
    elif kind == "full_disk":
        cluster.storage(target).disk.full = True
    elif kind == "lose_map":
        cluster.storage(target).loses_map = True
    elif kind == "drain":
        order_drain(cluster, target, "draining")
    elif kind == "flip_bits":
        cluster.kill(target)
        for _ in range(int(fault.amount)):
            cluster.storage(target).flip_bit()


def _finish(cluster: Cluster, fault: Fault) -> None:
    if cluster.faults_over:
        return
    kind, target, other = fault.kind, fault.target, fault.other
    network = cluster.network
    for link in _jammed_links(cluster, fault):
        network.release(*link)
    if kind in ("kill", "power", "replace", "flip_bits"):
        cluster.start(target, proof=kind != "replace")
    elif kind in ("tier_down", "stop"):
        for name in cluster.nodes:
            if name.startswith(target):
                cluster.start_anew(name)
    elif kind in ("pause", "freeze"):
        cluster.nodes[target].resume()
    elif kind == "slow_link":
        network.slow.pop((target, other), None)
    elif kind == "slow_disk":
        cluster.storage(target).slow_s = 0.0
    elif kind == "full_disk":
        cluster.storage(target).disk.full = False
    elif kind == "lose_map":
        cluster.storage(target).loses_map = False
    elif kind == "drain":
        order_drain(cluster, target, "")
    cluster.mark(
        Kind.RESTART if kind in ("kill", "stop", "power", "replace", "tier_down", "flip_bits") else Kind.HEAL,
        target,
        kind,
    )
