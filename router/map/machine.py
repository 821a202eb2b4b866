"""The ClusterMap's state machine: committed commands in, one map step out. The truth about who owns what.

Deterministic: same map, same command, same step, on every router. A command that does not apply (stale epoch, unknown
node) changes nothing and says why; a caller decides by the answer, never by what it proposed. A command out of its
ranges is such a one (``router/map/command_bounds.py``), and so is one whose rule raises. The rules are functions:
``MAP_RULES`` and ``JOB_RULES`` have one for each command. Per-message and per-subscription data never comes here.
Source: docs/protocol.md section 2.
"""

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from conf.events import say
from router.map.command_bounds import out_of_range
from router.map.commands import (
    AcceptLoss,
    Bootstrap,
    Command,
    DeclareDead,
    Delegate,
    ForgetNode,
    Order,
    PlacePartitions,
    PlaceShards,
    RegisterNode,
    SetAdminState,
    SetRebalance,
    StartRebalance,
    StopNodes,
)
from router.map.node_rules import declare_dead, forget_node, register, set_admin_state, stop_nodes
from router.map.orders import MapOrderOutcome, OrderMemory
from router.map.partition_rules import accept_loss, place_partitions
from router.map.rebalance_rules import set_rebalance, start_rebalance
from router.map.shard_rules import delegate, place_shards
from router.map.snapshot import MapState, decode_snapshot, encode_snapshot
from router.map.transition import Transition
from router.placement.plan import RebalanceJob
from wire.messages.cluster_map import ClusterMap, MapDelta, PartitionEntry, ShardEntry
from wire.messages.message import name_of

__all__ = ["JOB_RULES", "MAP_RULES", "CommandResult", "MapMachine"]

logger = logging.getLogger(__name__)

# A command -> its rule, which changes the transition, or returns why the command is refused.
MAP_RULES: dict[type[Command], Callable[[Transition, Any], str]] = {
    RegisterNode: register,
    DeclareDead: declare_dead,
    StopNodes: stop_nodes,
    SetAdminState: set_admin_state,
    ForgetNode: forget_node,
    PlacePartitions: place_partitions,
    AcceptLoss: accept_loss,
    PlaceShards: place_shards,
    Delegate: delegate,
}
# Those that change the job beside the map, and no epoch: the job afterwards, or why the command is refused.
JOB_RULES: dict[type[Command], Callable[[ClusterMap, RebalanceJob | None, Any], RebalanceJob | str]] = {
    StartRebalance: start_rebalance,
    SetRebalance: set_rebalance,
}


class CommandResult(msgspec.Struct, frozen=True):
    """Effect of a command: the step, or why there is none."""

    delta: MapDelta | None = None
    refusal: str = ""
    order: MapOrderOutcome | None = None  # of an order: how it ended when it came first


class _Judged(msgspec.Struct, frozen=True):
    """Effect that a command would have, all of it made and nothing of it done."""

    outcome: CommandResult = CommandResult()
    map: ClusterMap | None = None  # of a new cluster
    job: RebalanceJob | None = None


class MapMachine:
    """The map and its transitions."""

    def __init__(self) -> None:
        self.map = ClusterMap(cluster="")
        self.job: RebalanceJob | None = None
        self.orders = OrderMemory()

    def snapshot(self) -> bytes:
        """Return the whole state."""
        return encode_snapshot(MapState(self.map, self.job, self.orders.known))

    def restore(self, data: bytes) -> None:
        """Replace the whole state.

        Raises:
            Unreadable: If it is no snapshot of ours.
        """
        self.take(decode_snapshot(data))

    def take(self, state: MapState) -> None:
        """Replace the whole state by one that was read already."""
        self.map, self.job, self.orders = state.map, state.job, OrderMemory(state.orders)

    def apply(self, command: Command) -> CommandResult:
        """Carry out one committed command; what cannot be carried out is refused, and changes nothing.

        Never raises: it is committed, so every router meets it, again at each start.
        """
        if isinstance(command, Order):
            return self._apply_order(command)
        judged = self._judged(command)
        if judged.map is not None:
            assert not self.map.cluster, "a cluster is made once"
            self.map = judged.map
        if judged.job is not None:
            self.job = judged.job
        if judged.outcome.delta is not None:
            assert judged.outcome.delta.epoch == self.map.epoch + 1, "one step, one epoch"
            self.map.apply(judged.outcome.delta)
        return judged.outcome

    def suppose(self, command: Command) -> CommandResult:
        """Return what a command would do now, without doing it; never raises."""
        if not isinstance(command, Order):
            return self._judged(command).outcome
        return self._known_order(command) or self._judged(command.command).outcome

    def _apply_order(self, command: Order) -> CommandResult:
        known = self._known_order(command)
        if known is not None:
            return known
        outcome = self.apply(command.command)
        number = self.job.number if self.job is not None else None
        first = MapOrderOutcome(outcome.refusal, self.map.epoch, number)
        self.orders.note(command.identifier, first)
        return msgspec.structs.replace(outcome, order=first)

    def _known_order(self, command: Order) -> CommandResult | None:
        """Return the outcome of an order that came before, or of one that no order can be."""
        first = self.orders.get(command.identifier)
        if first is not None:
            return CommandResult(refusal=first.refusal, order=first)
        refusal = out_of_range(command, self.map) if self.map.cluster else "the cluster is not bootstrapped"
        return CommandResult(refusal=refusal) if refusal else None

    def _judged(self, command: Command) -> _Judged:
        try:
            return self._judge(command)
        except MemoryError:
            raise  # of this router alone: the others carried it out
        except Exception as error:  # the same at every router, for it comes of the command and the map
            say(logger, "map.command_failed", command=name_of(command), exc_info=True)
            return _Judged(CommandResult(refusal=f"{name_of(command)} cannot be carried out: {type(error).__name__}"))

    def _judge(self, command: Command) -> _Judged:
        refusal = out_of_range(command, self.map)
        if refusal:
            return _Judged(CommandResult(refusal=refusal))
        if isinstance(command, Bootstrap):
            return self._bootstrap(command)
        if not self.map.cluster:
            return _Judged(CommandResult(refusal="the cluster is not bootstrapped"))
        if type(command) in JOB_RULES:
            job = JOB_RULES[type(command)](self.map, self.job, command)
            return _Judged(CommandResult(refusal=job)) if isinstance(job, str) else _Judged(job=job)
        step = Transition(self.map)
        refusal = MAP_RULES[type(command)](step, command)
        if refusal or not step.changed:
            return _Judged(CommandResult(refusal=refusal))
        return _Judged(CommandResult(step.delta()))

    def _bootstrap(self, command: Bootstrap) -> _Judged:
        if self.map.cluster:
            return _Judged(CommandResult(refusal=f"cluster {self.map.cluster!r} exists already"))
        new = ClusterMap(
            cluster=command.cluster,
            cluster_id=command.cluster_id,
            partitions=[PartitionEntry() for _ in range(command.partitions)],
            shards=[ShardEntry() for _ in range(command.shards)],
            replicas=command.replicas,
            min_in_sync=command.min_in_sync,
            lease_s=command.lease_s,
            base_shards=command.shards,
        )
        new.begin()
        return _Judged(map=new)
