"""The cost of periodic scans of all nodes or all partitions: cores alone, and gossip in its simulation.

    python -m bench.many_nodes [--nodes 9 100 1000] [--partitions 256 4096 8192]

Prints a line for each scan and size: CPU time of one scan in milliseconds (the least of some), its frequency,
and its share of a core. The system is idle: no client, no message, all links up.
"""

import argparse
import time
from collections.abc import Callable

from msgspec.structs import replace

from bench.routes import Router
from membership.events import RecordsReceived
from membership.packets import decode_records, encode_records
from membership.profiles import LAN
from router.events import Applied, RoundEnded
from router.map.commands import RegisterNode, encode_command
from tests.edge.edge_harness import Edge, cluster_map
from tests.membership.scenarios import acquainted
from tests.storage.storage_cluster import Cluster
from wire.messages.cluster_map import ClusterMap, NodeEntry, NodeState
from wire.messages.hello import PeerKey
from wire.messages.nodes import Heartbeat
from wire.node.events import LinkUp
from wire.node.unreached import Unreached

WALKS = 20
GOSSIP_S = 10.0  # simulated
BEAT_S = 0.5
TIERS = ("edge", "edge", "storage", "storage", "router")


def _entries(count: int) -> list[NodeEntry]:
    tiers = [TIERS[number % len(TIERS)] for number in range(count)]
    return [NodeEntry(f"{tier}-{number}", tier, 1, f"h{number}:1") for number, tier in enumerate(tiers)]


def _with_nodes(count: int) -> ClusterMap:
    known = cluster_map()
    for entry in _entries(count):
        known.nodes[entry.node] = replace(entry, state=NodeState.ACTIVE)
    return known


def _least_ms(walk: Callable[[], object]) -> float:
    took = []
    for _ in range(WALKS):
        began = time.process_time()
        walk()
        took.append(time.process_time() - began)
    return min(took) * 1e3


def say(what: str, size: str, took_ms: float, every_s: float) -> None:
    """Print one line."""
    print(
        f"{what:46} {size:>16} {took_ms:9.3f} ms every {every_s:4.2f} s: {took_ms / every_s / 10:6.3f} % of a core",
        flush=True,
    )


def unreached(nodes: int) -> None:
    """Reports of unreachable nodes by edges (once a second) and storage nodes (twice); and after a change."""
    known, links = _with_nodes(nodes), Unreached("edge-0")
    keys = [PeerKey(entry.node, entry.tier, entry.incarnation) for entry in known.nodes.values()]
    for key in keys:
        links.link_up(key)

    def changed() -> None:
        links.link_up(keys[0])
        links.nodes(1.0, known)

    say("storage, edge: unreached nodes", f"{nodes} nodes", _least_ms(lambda: links.nodes(1.0, known)), 0.5)
    say("the same behind a link that came", f"{nodes} nodes", _least_ms(changed), 0.5)


def peers_of_an_edge(nodes: int) -> None:
    """The edge's work on its peers once a second."""
    edge, known = Edge(), _with_nodes(nodes)
    edge.core.peers.know(known)

    def all_of_them() -> None:
        while not edge.core.links.tick(edge.now):
            pass

    say("edge: peers, in goes of 100", f"{nodes} nodes", _least_ms(all_of_them), 1.0)


def leases(nodes: int) -> None:
    """The leader's work for each heartbeat, and for a scan of all leases and links."""
    router = Router(collect=False)
    keys = []
    for entry in _entries(nodes):
        router.core.handle(router.now, [Applied(encode_command(RegisterNode(entry)))])
        keys.append(PeerKey(entry.node, entry.tier, entry.incarnation))
    router.core.handle(router.now, [LinkUp(key) for key in keys])

    def beats() -> None:
        for key in keys:
            router.tell(key, Heartbeat(key.node, key.incarnation, router.now, router.core.machine.map.epoch, []))

    def look() -> None:
        router.now += BEAT_S
        ready = router.core.handle(router.now, [])
        router.core.handle(router.now, [RoundEnded(context, True) for context in ready.rounds])

    say("router: one beat of each node", f"{nodes} nodes", _least_ms(beats), BEAT_S)
    say("router: leases, links, answers to beats", f"{nodes} nodes", _least_ms(look), BEAT_S / 2)


def partitions(count: int) -> None:
    """A second of an idle storage node that has all partitions, with its harness."""
    cluster = Cluster(partitions=count)
    cluster.run(3.0)
    say("storage: an idle second, harness included", f"{count} partitions", _least_ms(lambda: cluster.run(1.0)), 1.0)


def gossip(members: int) -> None:
    """A member's period of an idle cluster, the simulated network included; and its half of a full exchange."""
    simulation = acquainted(1, members)
    began = time.process_time()
    simulation.run(simulation.now + GOSSIP_S)
    took_ms = (time.process_time() - began) * 1e3
    periods = members * GOSSIP_S / LAN.protocol_period_s
    say("gossip: a period of one member", f"{members} nodes", took_ms / periods, LAN.protocol_period_s)
    one, other = (simulation.members[number].swim for number in (0, 1))

    def exchange() -> None:
        records = list(decode_records(b"".join(encode_records(one.records()))))
        other.handle(simulation.now, RecordsReceived(records, initiated=True))

    say("gossip: half an exchange", f"{members} nodes", _least_ms(exchange), LAN.push_pull_s(members) / 2)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", nargs="+", type=int, default=[9, 100, 1_000])
    parser.add_argument("--partitions", nargs="+", type=int, default=[256, 4_096, 8_192])
    arguments = parser.parse_args()
    for walk in (unreached, peers_of_an_edge, leases, gossip):
        for count in arguments.nodes:
            walk(count)
    for count in arguments.partitions:
        partitions(count)


if __name__ == "__main__":
    main()
