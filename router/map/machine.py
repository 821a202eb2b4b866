"""The ClusterMap's state machine: committed commands in, one map step out. The truth about who owns what.

Deterministic: same map, same command, same step, on every router. A command that does not apply (stale epoch, unknown
node) changes nothing and says why; a caller decides by the answer, never by what it proposed. A command out
of its ranges is such a one (``router/map/command_bounds.py``), and so is one that makes a step raise. Per-message and
per-subscription data never comes here. Rules: docs/protocol.md section 2.
"""

import logging
from collections import Counter
from functools import partial

import msgspec

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
    decode_command,
    encode_command,
)
from router.map.orders import OrderMemory, OrderOutcome
from router.map.snapshot import MapState, decode_snapshot, encode_snapshot
from router.placement.changes import relieved, still_in_sync
from router.placement.plan import NEXT_STATES, UNFINISHED, RebalanceJob
from router.placement.ring import RingNode, propose_owners, propose_replicas
from wire.messages.cluster_map import ClusterMap, Delegation, MapDelta, NodeEntry, NodeState, PartitionEntry, ShardEntry
from wire.messages.hello import TIER_ROUTER, TIER_STORAGE
from wire.messages.message import name_of

__all__ = [
    "AcceptLoss",
    "Bootstrap",
    "Command",
    "DeclareDead",
    "Delegate",
    "ForgetNode",
    "MapMachine",
    "Order",
    "Outcome",
    "PlacePartitions",
    "PlaceShards",
    "RegisterNode",
    "SetAdminState",
    "SetRebalance",
    "StartRebalance",
    "StopNodes",
    "decode_command",
    "encode_command",
]

logger = logging.getLogger(__name__)


class Outcome(msgspec.Struct, frozen=True):
    """Effect of a command: the step, or why there is none."""

    delta: MapDelta | None = None
    refusal: str = ""
    order: OrderOutcome | None = None  # of an order: how it ended when it came first


class _Judged(msgspec.Struct, frozen=True):
    """Effect that a command would have, all of it made and nothing of it done."""

    outcome: Outcome = Outcome()
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
        state = decode_snapshot(data)
        self.map, self.job, self.orders = state.map, state.job, OrderMemory(state.orders)

    def apply(self, command: Command) -> Outcome:
        """Carry out one committed command; what cannot be carried out is refused, and changes nothing.

        Never raises: it is committed, so every router meets it, again at each start.
        """
        if isinstance(command, Order):
            return self._apply_order(command)
        judged = self._judged(command)
        if judged.map is not None:
            self.map = judged.map
        if judged.job is not None:
            self.job = judged.job
        if judged.outcome.delta is not None:
            self.map.apply(judged.outcome.delta)
        return judged.outcome

    def suppose(self, command: Command) -> Outcome:
        """Return what a command would do now, without doing it; never raises."""
        if not isinstance(command, Order):
            return self._judged(command).outcome
        return self._known_order(command) or self._judged(command.command).outcome

    def _apply_order(self, command: Order) -> Outcome:
        known = self._known_order(command)
        if known is not None:
            return known
        outcome = self.apply(command.command)
        number = self.job.number if self.job is not None else None
        first = OrderOutcome(outcome.refusal, self.map.epoch, number)
        self.orders.note(command.identifier, first)
        return msgspec.structs.replace(outcome, order=first)

    def _known_order(self, command: Order) -> Outcome | None:
        """Return the outcome of an order that came before, or of one that no order can be."""
        first = self.orders.get(command.identifier)
        if first is not None:
            return Outcome(refusal=first.refusal, order=first)
        refusal = out_of_range(command, self.map) if self.map.cluster else "the cluster is not bootstrapped"
        return Outcome(refusal=refusal) if refusal else None

    def _judged(self, command: Command) -> _Judged:
        try:
            return self._judge(command)
        except MemoryError:
            raise  # of this router alone: the others carried it out
        except Exception as error:  # the same at every router, for it comes of the command and the map
            logger.exception("a committed %s cannot be carried out", name_of(command))
            return _Judged(Outcome(refusal=f"{name_of(command)} cannot be carried out: {type(error).__name__}"))

    def _judge(self, command: Command) -> _Judged:
        refusal = out_of_range(command, self.map)
        if refusal:
            return _Judged(Outcome(refusal=refusal))
        if isinstance(command, Bootstrap):
            return self._bootstrap(command)
        if not self.map.cluster:
            return _Judged(Outcome(refusal="the cluster is not bootstrapped"))
        if isinstance(command, StartRebalance):
            return self._start_rebalance(command)
        if isinstance(command, SetRebalance):
            return self._set_rebalance(command)
        step = _Step(self.map)
        refusal = step.take(command)
        if refusal or not step.changed:
            return _Judged(Outcome(refusal=refusal))
        return _Judged(Outcome(step.delta()))

    def _bootstrap(self, command: Bootstrap) -> _Judged:
        if self.map.cluster:
            return _Judged(Outcome(refusal=f"cluster {self.map.cluster!r} exists already"))
        new = ClusterMap(
            cluster=command.cluster,
            partitions=[PartitionEntry() for _ in range(command.partitions)],
            shards=[ShardEntry() for _ in range(command.shards)],
            replicas=command.replicas,
            min_in_sync=command.min_in_sync,
            lease_s=command.lease_s,
            base_shards=command.shards,
        )
        return _Judged(map=new)

    def _start_rebalance(self, command: StartRebalance) -> _Judged:
        refusal = ""
        if self.job is not None and self.job.state in UNFINISHED:
            refusal = f"rebalance {self.job.number} is {self.job.state}: wait for it, or abort it"
        elif command.plan.map_epoch != self.map.epoch:
            at, now = command.plan.map_epoch, self.map.epoch
            refusal = f"the plan is of map epoch {at}, the map is at {now}: plan again"
        if refusal:
            return _Judged(Outcome(refusal=refusal))
        number = self.job.number + 1 if self.job is not None else 1
        return _Judged(job=RebalanceJob(number, command.plan, command.throttle_bytes_s, automatic=command.automatic))

    def _set_rebalance(self, command: SetRebalance) -> _Judged:
        job = self.job
        if job is None or job.number != command.job:
            return _Judged(Outcome(refusal=f"no rebalance {command.job}"))
        if command.state not in NEXT_STATES.get(job.state, ()):
            return _Judged(Outcome(refusal=f"rebalance {job.number} is {job.state}: it cannot become {command.state}"))
        return _Judged(job=msgspec.structs.replace(job, state=command.state, detail=command.detail))


class _Step:
    """One transition under construction: the map before it, and what changes."""

    def __init__(self, before: ClusterMap) -> None:
        self.before = before
        self.nodes: dict[str, NodeEntry] = {}
        self.forgotten: list[str] = []
        self.partitions: dict[int, PartitionEntry] = {}
        self.shards: dict[int, ShardEntry] = {}
        self.delegations: tuple[Delegation, ...] | None = None
        self._primaries: Counter[str] | None = None

    def take(self, command: Command) -> str:
        """Make the step that a command asks for; return why there is none."""
        if isinstance(command, RegisterNode):
            return self.register(command)
        if isinstance(command, DeclareDead):
            return self.declare_dead(command)
        if isinstance(command, StopNodes):
            return self.stop_nodes(command)
        if isinstance(command, PlacePartitions):
            return self.place_partitions(command)
        if isinstance(command, AcceptLoss):
            return self.accept_loss(command)
        if isinstance(command, PlaceShards):
            return self.place_shards(command)
        if isinstance(command, Delegate):
            return self.delegate(command)
        if isinstance(command, SetAdminState):
            return self.set_admin_state(command)
        if isinstance(command, ForgetNode):
            return self.forget(command)
        return f"a {name_of(command)} is no step of the map"

    @property
    def changed(self) -> bool:
        return bool(self.nodes or self.forgotten or self.partitions or self.shards or self.delegations is not None)

    def delta(self) -> MapDelta:
        nodes = tuple(self.nodes[name] for name in sorted(self.nodes))
        return MapDelta(
            self.before.epoch + 1, nodes, tuple(self.forgotten), self.partitions, self.shards, self.delegations
        )

    def _node(self, name: str) -> NodeEntry | None:
        return self.nodes.get(name) or self.before.nodes.get(name)

    def _alive(self, name: str) -> bool:
        entry = self._node(name)
        return entry is not None and entry.alive

    def _stays(self, name: str) -> bool:
        entry = self._node(name)
        return entry is not None and entry.alive and not entry.stops

    def _ring_nodes(self, tier: str) -> list[RingNode]:
        names = sorted({*self.before.nodes, *self.nodes})
        entries = [entry for name in names if (entry := self._node(name)) is not None]
        return [
            RingNode(entry.node, entry.weight, entry.zone)
            for entry in entries
            if entry.tier == tier and entry.alive and not entry.admin_state and not self._gives_up(entry)
        ]

    def _gives_up(self, entry: NodeEntry) -> bool:
        """Whether a node stops and has given away what it owned; one that found nobody keeps it until its end."""
        if not entry.stops or entry.tier != TIER_ROUTER or entry.node in self.nodes:
            return entry.stops
        return all(shard.owner != entry.node for shard in self.before.shards)

    # --- nodes

    def register(self, command: RegisterNode) -> str:
        entry = command.entry
        former = self.before.nodes.get(entry.node)
        if former is not None and former.tier != entry.tier:
            return f"node {entry.node} is a {former.tier}, not a {entry.tier}"
        if former is not None and former.incarnation >= entry.incarnation:
            if former.incarnation == entry.incarnation and former.alive:
                return ""
            return (
                f"incarnation {entry.incarnation} of {entry.node} is over, {former.incarnation} was registered: "
                "start it again, with the clock right if its data folder is new"
            )
        admin_state = former.admin_state if former is not None else ""
        self.nodes[entry.node] = msgspec.structs.replace(entry, state=NodeState.ACTIVE, admin_state=admin_state)
        if entry.tier == TIER_STORAGE:
            self._storage_arrived(entry.node, whole=command.whole)
        elif entry.tier == TIER_ROUTER:
            self._routers_changed(entry.node)
        return ""

    def declare_dead(self, command: DeclareDead) -> str:
        entry = self.before.nodes.get(command.node)
        if entry is None or entry.incarnation != command.incarnation:
            return f"{command.node} is not at incarnation {command.incarnation}"
        if not entry.alive:
            return ""
        self.nodes[entry.node] = msgspec.structs.replace(entry, state=NodeState.DEAD)
        if entry.tier == TIER_STORAGE:
            self._storage_left(entry.node)
        elif entry.tier == TIER_ROUTER:
            self._routers_changed("")
        return ""

    def stop_nodes(self, command: StopNodes) -> str:
        for name, incarnation in sorted(command.lives.items()):
            entry = self.before.nodes.get(name)
            if entry is not None and entry.incarnation == incarnation and entry.alive and not entry.stops:
                self.nodes[name] = msgspec.structs.replace(entry, state=NodeState.DRAINING)
        tiers = {entry.tier for entry in self.nodes.values()}
        if TIER_STORAGE in tiers:
            minimum = self.before.min_in_sync
            for number, placement in enumerate(self.before.partitions):
                after = relieved(placement, self.nodes.__contains__, self._stays, self._heir, minimum)
                if after is not None:
                    self.partitions[number] = after
        if TIER_ROUTER in tiers:
            self._routers_changed("")
        return ""

    def set_admin_state(self, command: SetAdminState) -> str:
        entry = self.before.nodes.get(command.node)
        if entry is None:
            return f"unknown node {command.node}"
        if entry.admin_state != command.state:
            self.nodes[entry.node] = msgspec.structs.replace(entry, admin_state=command.state)
        return ""

    def forget(self, command: ForgetNode) -> str:
        entry = self.before.nodes.get(command.node)
        if entry is None:
            return f"unknown node {command.node}"
        if entry.alive:
            return f"{command.node} is alive; stop it first"
        for number, placement in enumerate(self.before.partitions):
            if command.node in placement.in_sync:
                return f"{command.node} still holds partition {number}; add another storage node and rebalance first"
        self.forgotten.append(command.node)
        return ""

    # --- partitions

    def _storage_arrived(self, node: str, *, whole: bool) -> None:
        """A storage incarnation came in: it resumes no role under an old partition_epoch."""
        if all(placement.epoch == 0 for placement in self.before.partitions):
            self._place_first()
            return
        for number, placement in enumerate(self.before.partitions):
            if node in placement.in_sync:
                self._returned(number, placement, node, whole=whole)
            elif node in placement.joining:
                self._set(number, placement.primary, placement.in_sync, _without(placement.joining, node))

    def _returned(self, number: int, placement: PartitionEntry, node: str, *, whole: bool) -> None:
        others = tuple(name for name in placement.in_sync if name != node and self._may_lead(name, placement))
        primary = placement.primary if placement.primary in others else self._heir(others) if others else ""
        former = self.before.nodes.get(node)
        if not others and whole:
            self._set(number, node, placement.in_sync, placement.joining)
        elif whole and placement.primary == node and former is not None and former.stops:
            # It stopped in order and nobody took over: all stopped together, and each begins where it was.
            self._set(number, node, self._still_in_sync(placement.in_sync), placement.joining)
        elif whole and (primary == placement.primary or len(others) < self.before.min_in_sync):
            # It has all it acknowledged, and so all that is committed.
            in_sync, joining = self._still_in_sync(placement.in_sync), placement.joining
            if not self.before.lives(node):  # what was to take its place is not needed
                joining = joining[: max(0, self.before.replicas - len(in_sync))]
            self._set(number, primary, in_sync, joining)
        else:
            # Another replica goes on, or may when it comes back; this one catches up again. One that lost its store
            # is not in sync, though nobody else were: its next life would be taken for whole.
            left = self._still_in_sync(_without(placement.in_sync, node))
            self._set(number, primary, left, (*_without(placement.joining, node), node))

    def _storage_left(self, node: str) -> None:
        """A storage incarnation is dead: an in-sync replica that lives takes over; nobody else ever does."""
        for number, placement in enumerate(self.before.partitions):
            if node not in placement.in_sync and node not in placement.joining:
                continue
            joining = _without(placement.joining, node)
            heirs = tuple(name for name in placement.in_sync if name != node and self._may_lead(name, placement))
            # The dead stays in the in-sync set until a live in-sync replica is primary, and enough of them live.
            in_sync = placement.in_sync
            if any(map(self._stays, heirs)):
                in_sync = still_in_sync(in_sync, partial(self._may_lead, placement=placement), self.before.min_in_sync)
            if placement.primary == node:
                self._set(number, self._heir(heirs) if heirs else "", in_sync, joining)
            elif node in placement.in_sync and placement.primary:
                self._set(number, placement.primary, in_sync, joining)
            elif joining != placement.joining:
                self._set(number, placement.primary, placement.in_sync, joining)

    def _may_lead(self, name: str, placement: PartitionEntry) -> bool:
        """Whether a node may be the primary from now on: of those that stop only the one that is."""
        return self._stays(name) or (name == placement.primary and self._alive(name))

    def _still_in_sync(self, in_sync: tuple[str, ...]) -> tuple[str, ...]:
        return still_in_sync(in_sync, self._alive, self.before.min_in_sync)

    def _heir(self, heirs: tuple[str, ...]) -> str:
        """Return who takes over: the one with the fewest primaries, or a few deaths would leave one with them all."""
        if self._primaries is None:
            self._primaries = Counter(placement.primary for placement in self.before.partitions)
        heir = min(heirs, key=lambda name: (self._primaries[name], heirs.index(name)))  # type: ignore[index]
        self._primaries[heir] += 1
        return heir

    def _place_first(self) -> None:
        """Place every partition for the first time, all copies empty and therefore in sync."""
        nodes = self._ring_nodes(TIER_STORAGE)
        if len(nodes) < self.before.replicas:
            return
        for number, replicas in enumerate(propose_replicas(nodes, len(self.before.partitions), self.before.replicas)):
            self.partitions[number] = PartitionEntry(1, replicas[0], replicas)

    def _set(self, number: int, primary: str, in_sync: tuple[str, ...], joining: tuple[str, ...]) -> None:
        epoch = self.before.partitions[number].epoch + 1
        self.partitions[number] = PartitionEntry(epoch, primary, in_sync, joining)

    def place_partitions(self, command: PlacePartitions) -> str:
        for number, entry in command.entries.items():
            refusal = self._misfit(number, entry)
            if not refusal:
                self.partitions[number] = entry
            elif not command.each:
                return refusal
        return ""

    def _misfit(self, number: int, entry: PartitionEntry) -> str:
        """Return why a placement does not follow the present one."""
        if not 0 <= number < len(self.before.partitions):
            return f"no partition {number}"
        current = self.before.partitions[number]
        if entry.epoch != current.epoch + 1:
            return f"partition {number} is at epoch {current.epoch}, not {entry.epoch - 1}"
        if not set(entry.in_sync) & (set(current.in_sync) | set(current.joining)):
            return f"partition {number} would lose its last replica"
        if entry.primary and entry.primary not in entry.in_sync:
            return f"{entry.primary} is not in sync with partition {number}"
        return ""

    def accept_loss(self, command: AcceptLoss) -> str:
        entry = self.before.nodes.get(command.node)
        if entry is None or not entry.alive or entry.tier != TIER_STORAGE:
            return f"{command.node} is not a live storage node"
        for number, epoch in command.partitions.items():
            if not 0 <= number < len(self.before.partitions):
                return f"no partition {number}"
            current = self.before.partitions[number]
            if current.primary:
                return f"partition {number} is served by {current.primary}: nothing is lost"
            if current.epoch != epoch or not epoch:
                return f"partition {number} is at epoch {current.epoch}, not {epoch}: look again"
            self._set(number, command.node, (command.node,), ())
        return ""

    # --- shards

    def _routers_changed(self, restarted: str) -> None:
        """Owners that are gone, or live anew, own nothing: their shards go on at the next shard_epoch.

        A router that joins takes its share from the others, so that routes spread without an operator.
        """
        live = self._ring_nodes(TIER_ROUTER)
        if not live:
            return
        proposal = propose_owners(live, self.before.base_shards)
        giving_up = {name for name in self.nodes if self.nodes[name].stops}
        for number, shard in enumerate(self.before.shards):
            pinned = next((rule.pin for rule in self.before.delegations if rule.shard == number), "")
            owner = (
                pinned
                if pinned and self._alive(pinned) and pinned not in giving_up
                else proposal[number % len(proposal)]
            )
            if number < len(proposal) and not pinned:
                owner = proposal[number]
            if shard.owner != owner or shard.owner == restarted:
                self.shards[number] = ShardEntry(shard.epoch + 1, owner)

    def place_shards(self, command: PlaceShards) -> str:
        for number, owner in command.owners.items():
            if not 0 <= number < len(self.before.shards):
                return f"no shard {number}"
            entry = self.before.nodes.get(owner)
            if entry is None or not entry.alive or entry.tier != TIER_ROUTER:
                return f"{owner} is not a live router"
            if entry.stops:
                return f"{owner} stops"
            at = self.before.shards[number].epoch
            if command.epochs.get(number, at) != at:
                return f"shard {number} is at epoch {at}, not {command.epochs[number]}"
            self.shards[number] = ShardEntry(self.before.shards[number].epoch + 1, owner)
        return ""

    def delegate(self, command: Delegate) -> str:
        """A changed jurisdiction raises every shard's epoch: filters and cached topics are told anew by the new key."""
        levels = command.prefix.split("/")
        if not command.prefix or "+" in command.prefix or "#" in command.prefix:
            return f"{command.prefix!r} is not a topic prefix (whole levels, no wildcard)"
        if command.depth and command.depth < len(levels):
            return f"depth {command.depth} is less than the {len(levels)} levels of {command.prefix!r}"
        if command.pin and not self._alive(command.pin):
            return f"{command.pin} is not a live router"
        known = {rule.prefix: rule for rule in self.before.delegations}
        former = known.pop(command.prefix, None)
        shards = len(self.before.shards)
        if command.depth:
            number = -1
            if command.pin:
                number = former.shard if former is not None and former.shard >= 0 else shards
            known[command.prefix] = Delegation(command.prefix, command.depth, command.pin, number)
            if number == shards:
                self.shards[number] = ShardEntry(1, command.pin)
            elif number >= 0:
                self.shards[number] = ShardEntry(self.before.shards[number].epoch + 1, command.pin)
        elif former is None:
            return f"no delegation of {command.prefix!r}"
        self.delegations = tuple(known[prefix] for prefix in sorted(known))
        for number, shard in enumerate(self.before.shards):
            self.shards.setdefault(number, ShardEntry(shard.epoch + 1, shard.owner))
        return ""


def _without(names: tuple[str, ...], gone: str) -> tuple[str, ...]:
    return tuple(name for name in names if name != gone)
