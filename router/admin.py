"""Operators' questions to a router: what the map has decided, who owns what, and why.

Answers are plain data (``-o json`` prints them as they are). Verbs that change something are proposed as commands and
answered when they are committed; the leader does them, another router says who leads.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from zlib import crc32

from router.cluster_map import Command, Delegate, ForgetNode, Order, Outcome
from router.commands import OperatorCommand
from router.orders import OrderOutcome
from router.ring_desk import RingDesk, problems
from wire.messages import Admin, AdminReply
from wire.verbs import ROUTER_VERBS, BadQuestion, arguments_of
from wire.waiting import missing_from_map

if TYPE_CHECKING:
    from router.core import RouterCore

__all__ = ["AdminDesk", "does_not_lead"]

FAILED = 1
NOT_READY = 4
USAGE = 2
LEADERS = ("ring plan", "ring status")  # sizes and rates are told to the leader only
# What the process around the core answers: the Raft group's members, and gossip's keys.
SHELL_VERBS = ("cluster join", "cluster leave", "cluster transfer")
KEY_VERBS = tuple(f"membership keys {step}" for step in ("list", "install", "use", "remove"))
Answer = dict[str, Any]


def does_not_lead(question: Admin, node: str, leader: str) -> AdminReply:
    """Return the reply of a router that has done nothing, because another one leads ("" if none does)."""
    text = f"router {node} does not lead; ask {leader or 'again when one is elected'}"
    return AdminReply(question.request, False, {"leader": leader, "leads": False}, text, NOT_READY)


class AdminDesk:
    """The verbs of one router."""

    def __init__(self, router: "RouterCore") -> None:
        self._router = router
        self._waiting: dict[tuple[str, int], Admin] = {}
        self._ring = RingDesk(router)
        self._verbs: dict[str, Callable[[dict[str, Any]], Answer]] = {
            "cluster status": self._cluster_status,
            "node list": self._node_list,
            "ring show": self._ring_show,
            "ring explain": self._ring_explain,
            "ring export": self._ring_export,
            "ring plan": self._ring.plan,
            "ring status": self._ring.status,
            "ring verify": self._ring.verify,
            "ring lost": self._ring.lost,
        }

    def ask(self, peer: str, question: Admin) -> None:
        """Answer a verb, or propose what it asks for; a question that is none is refused, whoever leads."""
        router = self._router
        try:
            arguments = arguments_of(question, ROUTER_VERBS)
        except BadQuestion as error:
            router.tell(peer, AdminReply(question.request, False, None, f"router {router.node}: {error}", USAGE))
            return
        if question.verb in KEY_VERBS:
            router.questions.append((peer, question))
            return
        verb = self._verbs.get(question.verb)
        if question.verb in LEADERS and not router.leads:
            self._leader_only(peer, question)
            return
        if verb is not None:
            if not router.machine.map.cluster:
                router.tell(peer, AdminReply(question.request, False, None, "the cluster has no map yet", NOT_READY))
                return
            try:
                router.tell(peer, AdminReply(question.request, True, verb(arguments)))
            except ValueError as error:
                router.tell(peer, AdminReply(question.request, False, None, str(error.args[0]), USAGE))
            return
        self._change(peer, question, arguments)

    def _leader_only(self, peer: str, question: Admin) -> None:
        self._router.tell(peer, does_not_lead(question, self._router.node, self._router.leader))

    def _change(self, peer: str, question: Admin, arguments: Answer) -> None:
        router = self._router
        if not router.leads:
            self._leader_only(peer, question)
            return
        if question.verb in SHELL_VERBS:
            router.questions.append((peer, question))
            return
        first = router.machine.orders.get(question.order)
        if first is not None:
            router.tell(peer, self._reply(question.request, first))
            return
        try:
            command = self._command(question.verb, arguments)
        except ValueError as error:
            router.tell(peer, AdminReply(question.request, False, None, str(error.args[0]), FAILED))
            return
        if isinstance(command, dict):
            router.tell(peer, AdminReply(question.request, True, command))
            return
        if arguments["dry_run"]:
            router.tell(peer, self._supposed(question.request, command))
            return
        self._waiting[peer, question.request] = question
        router.propose(Order(question.order, command) if question.order else command, peer, question.request)

    def _supposed(self, request: int, command: Command) -> AdminReply:
        """Say what a command would change now."""
        outcome = self._router.machine.suppose(command)
        if outcome.refusal:
            return AdminReply(request, False, None, outcome.refusal, FAILED)
        delta = outcome.delta
        changes: Answer = {"dry_run": True, "map_epoch": self._router.machine.map.epoch}
        if delta is not None:
            changes |= {
                "nodes": [entry.node for entry in delta.nodes],
                "forgotten": list(delta.forgotten),
                "partitions": sorted(delta.partitions),
                "shards": len(delta.shards),
                "owners_changed": sum(
                    1
                    for number, shard in delta.shards.items()
                    if number >= len(self._router.machine.map.shards)
                    or shard.owner != self._router.machine.map.shards[number].owner
                ),
            }
        return AdminReply(request, True, changes)

    def _command(self, verb: str, arguments: Answer) -> OperatorCommand | Answer:
        if verb == "ring delegate":
            return Delegate(arguments["prefix"], arguments["depth"], arguments["pin"])
        if verb == "ring undelegate":
            return Delegate(arguments["prefix"], 0)
        if verb == "cluster forget":
            return ForgetNode(arguments["node"])
        return self._ring.command(verb, arguments)

    def failed(self, peer: str, request: int, leader: str) -> bool:
        """A proposed command was not committed, or its fate is unknown; True if an operator had asked for it."""
        if self._waiting.pop((peer, request), None) is None:
            return False
        text = (
            f"not committed: router {leader} leads now" if leader else "not committed: no majority of routers answers"
        )
        self._router.tell(
            peer, AdminReply(request, False, {"leader": leader}, f"{text}; look, and ask again", NOT_READY)
        )
        return True

    def answered(self, peer: str, request: int, outcome: Outcome) -> bool:
        """A proposed command was committed; True if an operator had asked for it."""
        if self._waiting.pop((peer, request), None) is None:
            return False
        machine = self._router.machine
        number = machine.job.number if machine.job is not None else None
        done = outcome.order or OrderOutcome(outcome.refusal, machine.map.epoch, number)
        self._router.tell(peer, self._reply(request, done))
        return True

    @staticmethod
    def _reply(request: int, outcome: OrderOutcome) -> AdminReply:
        reply = AdminReply(request, True, {"map_epoch": outcome.map_epoch, "rebalance": outcome.rebalance})
        if outcome.refusal:
            reply.ok, reply.error, reply.exit_code = False, outcome.refusal, FAILED
        return reply

    # --- verbs

    def _cluster_status(self, _: dict[str, Any]) -> Answer:
        router = self._router
        cluster_map = router.machine.map
        placed = [placement for placement in cluster_map.partitions if placement.epoch]
        return {
            "cluster": cluster_map.cluster,
            "map_epoch": cluster_map.epoch,
            "settled_epoch": router.leases.settled_epoch(cluster_map) if router.leads else None,
            "leader": router.leader,
            "router": router.node,
            "replicas": cluster_map.replicas,
            "min_in_sync": cluster_map.min_in_sync,
            "partitions": len(cluster_map.partitions),
            "partitions_without_primary": sum(1 for placement in placed if not placement.primary),
            "partitions_under_replicated": sum(
                len(cluster_map.live_in_sync(placement)) < cluster_map.replicas for placement in placed
            ),
            "partitions_unplaced": len(cluster_map.partitions) - len(placed),
            "rebalance_due": self._ring.due(),
            "waits_for": missing_from_map(cluster_map) or None,
            "shards_collecting": sum(1 for shard in router.shards.values() if shard.collecting),
            "shards_wait_for": sorted({name for shard in router.shards.values() for name in shard.missing()})[:20],
            "stores_aside": self._stores_aside() if router.leads else None,  # damaged, kept: `store aside` shows them
            "counts": dict(sorted(router.counts.items())),
            "nodes": self._node_list({})["nodes"],
        }

    def _stores_aside(self) -> int:
        nodes = self._router.machine.map.nodes.values()
        return sum(self._router.leases.stores_aside((entry.node, entry.incarnation)) for entry in nodes if entry.alive)

    def _node_list(self, _: dict[str, Any]) -> Answer:
        router = self._router
        cluster_map = router.machine.map
        believed = router.believes()
        nodes: list[Answer] = []
        for name in sorted(cluster_map.nodes):
            entry = cluster_map.nodes[name]
            life = (name, entry.incarnation)
            nodes.append(
                {
                    "node": name,
                    "tier": entry.tier,
                    "state": entry.admin_state if entry.alive and entry.admin_state else entry.state,
                    "gossip": believed.pop(name, None),
                    "incarnation": entry.incarnation,
                    "address": entry.address,
                    "clients": entry.clients,
                    "zone": entry.zone,
                    "weight": entry.weight,
                    "lease_s": round(router.leases.remaining_s(router.now, life), 2)
                    if router.leads and entry.alive
                    else None,
                    "map_epoch": router.leases.acknowledged(life) if router.leads else None,
                    "primaries": sum(1 for placement in cluster_map.partitions if placement.primary == name),
                    "replicas": sum(1 for placement in cluster_map.partitions if name in placement.in_sync),
                    "joining": sum(1 for placement in cluster_map.partitions if name in placement.joining),
                    "shards": sum(1 for shard in cluster_map.shards if shard.owner == name),
                }
            )
        nodes += [{"node": name, "state": "unknown", "gossip": believed[name]} for name in sorted(believed)]
        # Only the leader knows leases: the command line asks it when another router answered.
        asked = {} if router.leads else {"leader": router.leader, "router": router.node}
        return {**asked, "nodes": nodes}

    def _ring_show(self, _: dict[str, Any]) -> Answer:
        """Return the placement; the leader adds how many keys and bytes there are, and what is wrong."""
        shown = self._placement()
        partitions, shards = self._ring.sizes()
        wrong = dict(problems(self._router.machine.map))
        for row, sizes in (
            *((row, partitions.get(row["partition"])) for row in shown["partitions"]),
            *((row, shards.get(row["shard"])) for row in shown["shards"]),
        ):
            row["keys"], row["bytes"] = sizes if sizes is not None else (None, None)
        for row in shown["partitions"]:
            row["state"] = wrong.get(row["partition"], "ok")
        return shown

    def _placement(self) -> Answer:
        cluster_map = self._router.machine.map
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

    def _ring_explain(self, arguments: dict[str, Any]) -> Answer:
        """Say where a name lives, read as a client ID and as a topic: both are strings, so both are answered."""
        cluster_map = self._router.machine.map
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

    def _ring_export(self, _: dict[str, Any]) -> Answer:
        exported = self._placement()
        exported["format"] = "stratamq-ring"
        exported["version"] = 1
        exported["base_shards"] = self._router.machine.map.base_shards
        return exported
