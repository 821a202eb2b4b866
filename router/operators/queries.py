"""Operators' queries of a router: the decisions of the map, owners, and explanations.

Answers are plain data (``-o json`` prints them unchanged). Commands that change the map are proposed and answered when
committed. The leader executes them, another router returns the leader's name. These functions of a request and a view
send, propose and store nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias
from zlib import crc32

import msgspec

from access.operators.commands import Operator, Refusal, judge
from membership.node_gossip import BelievedState
from router.map.commands import Command, Delegate, ForgetNode, OperatorCommand, Order
from router.map.contradictions import Contradictions
from router.map.leases import LeaseTable
from router.map.machine import CommandResult, MapMachine
from router.map.not_leading import does_not_lead
from router.map.orders import MapOrderOutcome
from router.operators import ring_commands
from router.operators.for_nodes import FOR_NODES, NodeOrderRequest, for_nodes
from router.routes.shard import RouteShard
from wire.messages.cluster_map import NodeEntry
from wire.messages.hello import TIER_EDGE, TIER_ROUTER
from wire.messages.operators import Admin, AdminReply
from wire.node.startup_log import missing_from_map

__all__ = [
    "Decision",
    "PolicyQuery",
    "ProcessRequest",
    "ProposedChange",
    "RouterView",
    "decide",
    "not_committed",
    "refused",
    "reply_to",
]

FAILED = 1
NOT_READY = 4
USAGE = 2
LEADERS = ("ring plan", "ring status")  # only the leader receives sizes and rates
# Answered by the router's process: members of the Raft group, and gossip keys.
SHELL_VERBS = ("cluster join", "cluster leave", "cluster transfer")
CHANGES = frozenset(  # of the map
    {
        "cluster forget",
        "node drain",
        "node undrain",
        "ring abort",
        "ring add",
        "ring delegate",
        "ring drain",
        "ring pause",
        "ring rebalance",
        "ring recover",
        "ring remove",
        "ring resume",
        "ring undelegate",
    }
)
POLICY_GROUPS = frozenset(("user", "role", "group", "ban", "revoke", "unrevoke", "token", "policy"))
GOSSIP_VERBS = ("membership list", *(f"membership keys {step}" for step in ("list", "install", "use", "remove")))
Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ProposedChange:
    """A change of the map to propose; the request is answered when Raft reports the result."""

    command: Command


@dataclass(frozen=True, slots=True)
class PolicyQuery:
    """A request for the policy service, with validated arguments."""

    arguments: msgspec.Struct


@dataclass(frozen=True, slots=True)
class ProcessRequest:
    """A request for the router's process."""


Decision: TypeAlias = AdminReply | PolicyQuery | ProposedChange | NodeOrderRequest | ProcessRequest


class RouterView(Protocol):
    """Read-only view of one router for operators."""

    @property
    def node(self) -> str:
        """Name of the router."""

    @property
    def leader(self) -> str:
        """Return the name of the Raft group's leader, "" if none is known."""

    @property
    def leads(self) -> bool:
        """True if this router leads."""

    @property
    def now(self) -> float:
        """Time of the iteration, on the leases' clock."""

    @property
    def machine(self) -> MapMachine:
        """The map, the rebalance job and the results of orders."""

    @property
    def leases(self) -> LeaseTable:
        """Heartbeats and leases of nodes; the leader only."""

    @property
    def contradictions(self) -> Contradictions:
        """Nodes whose heartbeats contradict the log; the leader only."""

    @property
    def shards(self) -> Mapping[int, RouteShard]:
        """Shards owned here."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Events of this router."""

    @property
    def believes(self) -> Callable[[], dict[str, BelievedState]]:
        """Gossip's state of each node."""

    def rebalance_due(self) -> int:
        """Return the number of partitions that are not at their node of the ring."""

    def rebalance_status(self) -> Answer:
        """Return the state of the current or last rebalance."""


def decide(question: Admin, operator: Operator | None, view: RouterView) -> Decision:
    """Return a request's answer, the change to propose, or the part of the process that answers it.

    Raises:
        Refusal: The operator lacks permission, or the request is not valid at a router.
    """
    _, validated = judge(question, operator, TIER_ROUTER)
    if question.verb.partition(" ")[0] in POLICY_GROUPS:
        return PolicyQuery(validated)
    if isinstance(validated, FOR_NODES):
        try:
            return for_nodes(validated, view.machine.map)
        except ValueError as error:
            return AdminReply(question.request, False, None, str(error), FAILED)
    arguments = msgspec.structs.asdict(validated)
    if question.verb in GOSSIP_VERBS:
        return ProcessRequest()
    if question.verb in LEADERS and not view.leads:
        return does_not_lead(question, view.node, view.leader)
    verb = VERBS.get(question.verb)
    if verb is None and question.verb not in CHANGES and question.verb not in SHELL_VERBS:
        raise Refusal(f"`{question.verb}` is not carried out by this version")
    if verb is None:
        return _change(question, arguments, view)
    if not view.machine.map.cluster:
        return AdminReply(question.request, False, None, "the cluster has no map yet", NOT_READY)
    try:
        return AdminReply(question.request, True, verb(view, arguments))
    except ValueError as error:
        return AdminReply(question.request, False, None, str(error.args[0]), USAGE)


def _change(question: Admin, arguments: Answer, view: RouterView) -> Decision:
    if not view.leads:
        return does_not_lead(question, view.node, view.leader)
    if question.verb in SHELL_VERBS:
        return ProcessRequest()
    first = view.machine.orders.get(question.order)
    if first is not None:
        return _reply(question.request, first)
    try:
        command = _command(question.verb, arguments, view)
    except ValueError as error:
        return AdminReply(question.request, False, None, str(error.args[0]), FAILED)
    if isinstance(command, dict):
        return AdminReply(question.request, True, command)
    if arguments["dry_run"]:
        return _dry_run_reply(question.request, command, view)
    return ProposedChange(Order(question.order, command) if question.order else command)


def _command(verb: str, arguments: Answer, view: RouterView) -> OperatorCommand | Answer:
    if verb == "ring delegate":
        return Delegate(arguments["prefix"], arguments["depth"], arguments["pin"])
    if verb == "ring undelegate":
        return Delegate(arguments["prefix"], 0)
    if verb == "cluster forget":
        return ForgetNode(arguments["node"])
    cluster_map, job = view.machine.map, view.machine.job
    if verb == "ring rebalance":
        return ring_commands.rebalance(cluster_map, job, ring_commands.sizes(cluster_map, view.leases), arguments)
    return ring_commands.command(cluster_map, job, verb, arguments)


def _dry_run_reply(request: int, command: Command, view: RouterView) -> AdminReply:
    """Return the changes that a command would make now."""
    outcome = view.machine.suppose(command)
    if outcome.refusal:
        return AdminReply(request, False, None, outcome.refusal, FAILED)
    cluster_map, delta = view.machine.map, outcome.delta
    changes: Answer = {"dry_run": True, "map_epoch": cluster_map.epoch}
    if delta is not None:
        changes |= {
            "nodes": [entry.node for entry in delta.nodes],
            "forgotten": list(delta.forgotten),
            "partitions": sorted(delta.partitions),
            "shards": len(delta.shards),
            "owners_changed": sum(
                1
                for number, shard in delta.shards.items()
                if number >= len(cluster_map.shards) or shard.owner != cluster_map.shards[number].owner
            ),
        }
    return AdminReply(request, True, changes)


def refused(question: Admin, node: str, refusal: Refusal) -> AdminReply:
    """Return the reply to a refused request."""
    return AdminReply(question.request, False, None, f"router {node}: {refusal}", USAGE)


def not_committed(question: Admin, leader: str) -> AdminReply:
    """Return the reply for a command that was not committed or has an unknown result."""
    text = f"not committed: router {leader} leads now" if leader else "not committed: no majority of routers answers"
    return AdminReply(question.request, False, {"leader": leader}, f"{text}; look, and ask again", NOT_READY)


def reply_to(question: Admin, outcome: CommandResult, machine: MapMachine) -> AdminReply:
    """Return the reply for a committed or previously refused command."""
    number = machine.job.number if machine.job is not None else None
    return _reply(question.request, outcome.order or MapOrderOutcome(outcome.refusal, machine.map.epoch, number))


def _reply(request: int, outcome: MapOrderOutcome) -> AdminReply:
    reply = AdminReply(request, True, {"map_epoch": outcome.map_epoch, "rebalance": outcome.rebalance})
    if outcome.refusal:
        reply.ok, reply.error, reply.exit_code = False, outcome.refusal, FAILED
    return reply


# --- verbs


def _cluster_status(view: RouterView, _: Answer) -> Answer:
    cluster_map = view.machine.map
    placed = [placement for placement in cluster_map.partitions if placement.epoch]
    return {
        "cluster": cluster_map.cluster,
        "cluster_id": cluster_map.cluster_id,
        "map_epoch": cluster_map.epoch,
        "settled_epoch": view.leases.settled_epoch(cluster_map) if view.leads else None,
        "contradictions": view.contradictions.nodes if view.leads else None,  # node -> "map", "policy"
        "leader": view.leader,
        "router": view.node,
        "replicas": cluster_map.replicas,
        "min_in_sync": cluster_map.min_in_sync,
        "partitions": len(cluster_map.partitions),
        "partitions_without_primary": sum(1 for placement in placed if not placement.primary),
        "partitions_under_replicated": sum(
            len(cluster_map.live_in_sync(placement)) < cluster_map.replicas for placement in placed
        ),
        "partitions_unplaced": len(cluster_map.partitions) - len(placed),
        "rebalance_due": view.rebalance_due(),
        "waits_for": missing_from_map(cluster_map) or None,
        "shards_collecting": sum(1 for shard in view.shards.values() if shard.collecting),
        "shards_wait_for": sorted({name for shard in view.shards.values() for name in shard.missing()})[:20],
        "stores_aside": _stores_aside(view) if view.leads else None,  # quarantined; `store aside` lists them
        "counts": dict(sorted(view.counts.items())),
        "nodes": _node_list(view, {})["nodes"],
    }


def _stores_aside(view: RouterView) -> int:
    nodes = view.machine.map.nodes.values()
    return sum(view.leases.stores_aside((entry.node, entry.incarnation)) for entry in nodes if entry.alive)


def _state(entry: NodeEntry, seen: BelievedState | None) -> str:
    if not entry.alive or not entry.admin_state:
        return entry.state
    emptied = entry.tier == TIER_EDGE and seen is not None and seen.clients == 0
    return "drained" if emptied else entry.admin_state


def _node_list(view: RouterView, _: Answer) -> Answer:
    cluster_map = view.machine.map
    believed = view.believes()
    nodes: list[Answer] = []
    for name in sorted(cluster_map.nodes):
        entry = cluster_map.nodes[name]
        incarnation = (name, entry.incarnation)
        seen = believed.pop(name, None)
        nodes.append(
            {
                "node": name,
                "tier": entry.tier,
                "state": _state(entry, seen),
                "gossip": seen.state if seen is not None else None,
                "incarnation": entry.incarnation,
                "address": entry.address,
                "clients": entry.clients,
                "connected": seen.clients if seen is not None else None,  # clients, as the edge reports in gossip
                "load": seen.load if seen is not None and seen.clients is not None else None,
                "zone": entry.zone,
                "weight": entry.weight,
                "lease_s": round(view.leases.remaining_s(view.now, incarnation), 2)
                if view.leads and entry.alive
                else None,
                "map_epoch": view.leases.acknowledged(incarnation) if view.leads else None,
                "primaries": sum(1 for placement in cluster_map.partitions if placement.primary == name),
                "replicas": sum(1 for placement in cluster_map.partitions if name in placement.in_sync),
                "joining": sum(1 for placement in cluster_map.partitions if name in placement.joining),
                "shards": sum(1 for shard in cluster_map.shards if shard.owner == name),
            }
        )
    nodes += [{"node": name, "state": "unknown", "gossip": believed[name].state} for name in sorted(believed)]
    # Only the leader knows leases: the command line queries it if another router answered.
    leader = {} if view.leads else {"leader": view.leader, "router": view.node}
    return {**leader, "nodes": nodes}


def _ring_show(view: RouterView, _: Answer) -> Answer:
    """Return the placement; at the leader with keys, bytes and problems."""
    shown = _placement(view)
    partitions, shards = ring_commands.sizes(view.machine.map, view.leases)
    wrong = dict(ring_commands.problems(view.machine.map))
    for row, sizes in (
        *((row, partitions.get(row["partition"])) for row in shown["partitions"]),
        *((row, shards.get(row["shard"])) for row in shown["shards"]),
    ):
        row["keys"], row["bytes"] = sizes if sizes is not None else (None, None)
    for row in shown["partitions"]:
        row["state"] = wrong.get(row["partition"], "ok")
    return shown


def _placement(view: RouterView) -> Answer:
    cluster_map = view.machine.map
    return {
        "map_epoch": cluster_map.epoch,
        "hash": cluster_map.hash_name,
        "partitions": [
            {
                "partition": number,
                "epoch": placement.epoch,
                "primary": placement.primary,
                "in_sync": list(placement.in_sync),
                "joining": list(placement.joining),
            }
            for number, placement in enumerate(cluster_map.partitions)
        ],
        "shards": [
            {"shard": number, "epoch": shard.epoch, "owner": shard.owner}
            for number, shard in enumerate(cluster_map.shards)
        ],
        "delegations": [
            {"prefix": rule.prefix, "depth": rule.depth, "pin": rule.pin, "shard": rule.shard}
            for rule in cluster_map.delegations
        ],
    }


def _ring_explain(view: RouterView, arguments: Answer) -> Answer:
    """Explain the location of a name, both as a client ID and as a topic."""
    cluster_map = view.machine.map
    name = arguments["name"]
    partition = cluster_map.partition_for(name)
    placement = cluster_map.partitions[partition]
    levels = name.split("/")
    depth, pinned = cluster_map.jurisdiction(levels)
    shard = cluster_map.shard_for_topic(name)
    key = "/".join(levels[:depth])
    return {
        "name": name,
        "map_epoch": cluster_map.epoch,
        "crc32": crc32(name.encode()),
        "partition": partition,
        "partition_why": f"crc32({name!r}) mod {len(cluster_map.partitions)}",
        "partition_epoch": placement.epoch,
        "primary": placement.primary,
        "in_sync": list(placement.in_sync),
        "route_key": key,
        "shard": shard,
        "shard_why": f"prefix pinned to shard {pinned}"
        if pinned >= 0
        else f"crc32({key!r}) mod {cluster_map.base_shards}",
        "shard_epoch": cluster_map.shards[shard].epoch,
        "owner": cluster_map.shards[shard].owner,
    }


def _ring_export(view: RouterView, _: Answer) -> Answer:
    exported = _placement(view)
    exported["format"] = "stratamq-ring"
    exported["version"] = 1
    exported["base_shards"] = view.machine.map.base_shards
    return exported


def _ring_plan(view: RouterView, arguments: Answer) -> Answer:
    cluster_map = view.machine.map
    return ring_commands.plan(cluster_map, ring_commands.sizes(cluster_map, view.leases), arguments)


VERBS: dict[str, Callable[[RouterView, Answer], Answer]] = {
    "cluster status": _cluster_status,
    "node list": _node_list,
    "ring show": _ring_show,
    "ring explain": _ring_explain,
    "ring export": _ring_export,
    "ring plan": _ring_plan,
    "ring status": lambda view, _: view.rebalance_status(),
    "ring verify": lambda view, _: ring_commands.verify(view.machine.map, view.machine.job),
    "ring lost": lambda view, arguments: ring_commands.lost(view.machine.map, arguments),
}
