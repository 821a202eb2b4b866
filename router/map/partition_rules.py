"""The rules for placements: the primary after a death, a return, a stop or an operator's command.

Only an in-sync replica becomes the primary, except by an operator's ``accept_loss``. Each new placement has the
partition's next epoch. Rules: docs/protocol.md section 9.
"""

from functools import partial

from router.map.commands import AcceptLoss, PlacePartitions
from router.map.transition import Transition
from router.placement.changes import still_in_sync, without_stopping
from router.placement.ring import propose_replicas
from wire.messages.cluster_map import PartitionEntry
from wire.messages.hello import TIER_STORAGE

__all__ = ["accept_loss", "place_partitions", "storage_arrived", "storage_left", "storages_stop"]


def storage_arrived(step: Transition, node: str, *, whole: bool) -> None:
    """Admit a storage incarnation, which resumes no role of an old partition_epoch.

    Args:
        whole: Its store holds all data of its former incarnations; False after a lost or damaged store.
    """
    if all(placement.epoch == 0 for placement in step.before.partitions):
        _place_first(step)
        return
    for number, placement in enumerate(step.before.partitions):
        if node in placement.in_sync:
            _place_returned(step, number, placement, node, whole=whole)
        elif node in placement.joining:
            step.place(number, placement.primary, placement.in_sync, _without(placement.joining, node))


def _place_returned(step: Transition, number: int, placement: PartitionEntry, node: str, *, whole: bool) -> None:
    """Place a partition after an in-sync replica returned as a new incarnation."""
    others = tuple(name for name in placement.in_sync if name != node and step.may_lead(name, placement))
    primary = placement.primary if placement.primary in others else step.select_successor(others) if others else ""
    former = step.before.nodes.get(node)
    if not others and whole:
        step.place(number, node, placement.in_sync, placement.joining)
    elif whole and placement.primary == node and former is not None and former.stops:
        # It stopped in order without a successor: all stopped together, and each resumes its role.
        step.place(number, node, step.still_in_sync(placement.in_sync), placement.joining)
    elif whole and (primary == placement.primary or len(others) < step.before.min_in_sync):
        # It has all operations that it acknowledged, and therefore all committed ones.
        in_sync, joining = step.still_in_sync(placement.in_sync), placement.joining
        if not step.before.has_live(node):  # its replacement is not needed
            joining = joining[: max(0, step.before.replicas - len(in_sync))]
        step.place(number, primary, in_sync, joining)
    else:
        # Another replica serves, or may after its return; this one catches up again. One that lost its store
        # is not in sync, even as the only replica: its next incarnation would count as whole.
        left = step.still_in_sync(_without(placement.in_sync, node))
        step.place(number, primary, left, (*_without(placement.joining, node), node))


def storage_left(step: Transition, node: str) -> None:
    """Place the partitions of a dead incarnation: only a live in-sync replica takes over."""
    for number, placement in enumerate(step.before.partitions):
        if node not in placement.in_sync and node not in placement.joining:
            continue
        joining = _without(placement.joining, node)
        candidates = tuple(name for name in placement.in_sync if name != node and step.may_lead(name, placement))
        # The dead node stays in sync until a live in-sync replica is primary and enough replicas are alive.
        in_sync = placement.in_sync
        if any(map(step.stays, candidates)):
            in_sync = still_in_sync(in_sync, partial(step.may_lead, placement=placement), step.before.min_in_sync)
        if placement.primary == node:
            step.place(number, step.select_successor(candidates) if candidates else "", in_sync, joining)
        elif node in placement.in_sync and placement.primary:
            step.place(number, placement.primary, in_sync, joining)
        elif joining != placement.joining:
            step.place(number, placement.primary, placement.in_sync, joining)


def storages_stop(step: Transition) -> None:
    """Move partitions away from the stopping nodes of this step, as far as remaining nodes may take them."""
    minimum = step.before.min_in_sync
    for number, placement in enumerate(step.before.partitions):
        after = without_stopping(placement, step.nodes.__contains__, step.stays, step.select_successor, minimum)
        if after is not None:
            step.partitions[number] = after


def _place_first(step: Transition) -> None:
    """Place every partition for the first time; all copies are empty and therefore in sync."""
    nodes = step.ring_nodes(TIER_STORAGE)
    if len(nodes) < step.before.replicas:
        return
    for number, replicas in enumerate(propose_replicas(nodes, len(step.before.partitions), step.before.replicas)):
        step.partitions[number] = PartitionEntry(1, replicas[0], replicas)


def place_partitions(step: Transition, command: PlacePartitions) -> str:
    """Apply placements that follow the current ones; others are skipped, or refuse the whole command."""
    for number, entry in command.entries.items():
        refusal = _find_misfit(step, number, entry)
        if not refusal:
            step.partitions[number] = entry
        elif not command.each:
            return refusal
    return ""


def _find_misfit(step: Transition, number: int, entry: PartitionEntry) -> str:
    """Return why a placement does not follow the current one."""
    if not 0 <= number < len(step.before.partitions):
        return f"no partition {number}"
    current = step.before.partitions[number]
    if entry.epoch != current.epoch + 1:
        return f"partition {number} is at epoch {current.epoch}, not {entry.epoch - 1}"
    if not set(entry.in_sync) & (set(current.in_sync) | set(current.joining)):
        return f"partition {number} would lose its last replica"
    if entry.primary and entry.primary not in entry.in_sync:
        return f"{entry.primary} is not in sync with partition {number}"
    return ""


def accept_loss(step: Transition, command: AcceptLoss) -> str:
    """Make a live storage node the only copy of partitions without a primary, all of them or none."""
    entry = step.before.nodes.get(command.node)
    if entry is None or not entry.alive or entry.tier != TIER_STORAGE:
        return f"{command.node} is not a live storage node"
    for number, epoch in command.partitions.items():
        if not 0 <= number < len(step.before.partitions):
            return f"no partition {number}"
        current = step.before.partitions[number]
        if current.primary:
            return f"partition {number} is served by {current.primary}: nothing is lost"
        if current.epoch != epoch or not epoch:
            return f"partition {number} is at epoch {current.epoch}, not {epoch}: look again"
        step.place(number, command.node, (command.node,), ())
    return ""


def _without(names: tuple[str, ...], removed: str) -> tuple[str, ...]:
    return tuple(name for name in names if name != removed)
