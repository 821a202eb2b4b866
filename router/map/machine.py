"""The ClusterMap's state machine: it applies committed commands, each as one map step.

Deterministic: the same map and command give the same step on every router. A command that does not apply (stale epoch,
unknown node) changes nothing and returns a refusal; a caller must use the result, not its proposal. A command out of
range (``router/map/command_bounds.py``) is refused, and so is one whose rule raises. ``MAP_RULES`` and ``JOB_RULES``
have one function for each command. Data per message or subscription never enters the map. Source: docs/protocol.md
section 2.
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

# Command -> its rule, which changes the transition or returns a refusal.
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
# Commands that change the job and no epoch: the rule returns the new job, or a refusal.
JOB_RULES: dict[type[Command], Callable[[ClusterMap, RebalanceJob | None, Any], RebalanceJob | str]] = {
    StartRebalance: start_rebalance,
    SetRebalance: set_rebalance,
}


class CommandResult(msgspec.Struct, frozen=True):
    """Effect of a command: a step, or a refusal."""

    delta: MapDelta | None = None
    refusal: str = ""
    order: MapOrderOutcome | None = None  # of an order: its first result


class _Evaluation(msgspec.Struct, frozen=True):
    """Effect of a command before it is applied."""

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
        """Return the encoded state."""
        return encode_snapshot(MapState(self.map, self.job, self.orders.known))

    def restore(self, data: bytes) -> None:
        """Replace the whole state.

        Raises:
            Unreadable: The data is not a valid snapshot.
        """
        self.take(decode_snapshot(data))

    def take(self, state: MapState) -> None:
        """Replace the whole state by a decoded one."""
        self.map, self.job, self.orders = state.map, state.job, OrderMemory(state.orders)

    def apply(self, command: Command) -> CommandResult:
        """Apply one committed command; one that cannot be applied is refused and changes nothing.

        Never raises: every router applies the committed command, again at each start.
        """
        if isinstance(command, Order):
            return self._apply_order(command)
        evaluation = self._evaluate_safely(command)
        if evaluation.map is not None:
            assert not self.map.cluster, "a cluster is made once"
            self.map = evaluation.map
        if evaluation.job is not None:
            self.job = evaluation.job
        if evaluation.outcome.delta is not None:
            assert evaluation.outcome.delta.epoch == self.map.epoch + 1, "one step, one epoch"
            self.map.apply(evaluation.outcome.delta)
        return evaluation.outcome

    def suppose(self, command: Command) -> CommandResult:
        """Return the effect that a command would have now; never raises."""
        if not isinstance(command, Order):
            return self._evaluate_safely(command).outcome
        return self._known_order(command) or self._evaluate_safely(command.command).outcome

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
        """Return the result of an order that was applied before, or the refusal of an invalid one."""
        first = self.orders.get(command.identifier)
        if first is not None:
            return CommandResult(refusal=first.refusal, order=first)
        refusal = out_of_range(command, self.map) if self.map.cluster else "the cluster is not bootstrapped"
        return CommandResult(refusal=refusal) if refusal else None

    def _evaluate_safely(self, command: Command) -> _Evaluation:
        try:
            return self._evaluate(command)
        except MemoryError:
            raise  # local to this router: the others applied the command
        except Exception as error:  # the same at every router, because it depends on command and map only
            say(logger, "map.command_failed", command=name_of(command), exc_info=True)
            return _Evaluation(
                CommandResult(refusal=f"{name_of(command)} cannot be carried out: {type(error).__name__}")
            )

    def _evaluate(self, command: Command) -> _Evaluation:
        refusal = out_of_range(command, self.map)
        if refusal:
            return _Evaluation(CommandResult(refusal=refusal))
        if isinstance(command, Bootstrap):
            return self._bootstrap(command)
        if not self.map.cluster:
            return _Evaluation(CommandResult(refusal="the cluster is not bootstrapped"))
        if type(command) in JOB_RULES:
            job = JOB_RULES[type(command)](self.map, self.job, command)
            return _Evaluation(CommandResult(refusal=job)) if isinstance(job, str) else _Evaluation(job=job)
        step = Transition(self.map)
        refusal = MAP_RULES[type(command)](step, command)
        if refusal or not step.changed:
            return _Evaluation(CommandResult(refusal=refusal))
        return _Evaluation(CommandResult(step.delta()))

    def _bootstrap(self, command: Bootstrap) -> _Evaluation:
        if self.map.cluster:
            return _Evaluation(CommandResult(refusal=f"cluster {self.map.cluster!r} exists already"))
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
        return _Evaluation(map=new)
