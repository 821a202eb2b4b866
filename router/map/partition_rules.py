"""The rules for placements: who leads a partition after a death, a return, a stop, or an operator's word.

Only a replica that is in sync ever becomes the primary, but for ``accept_loss``, which an operator orders. Each new
placement is at the partition's next epoch. Rules: docs/protocol.md section 9.
"""

from functools import partial

from router.map.commands import AcceptLoss, PlacePartitions
from router.map.transition import Transition
from router.placement.changes import relieved, still_in_sync
from router.placement.ring import propose_replicas
from wire.messages.cluster_map import PartitionEntry
from wire.messages.hello import TIER_STORAGE

__all__ = ["accept_loss", "place_partitions", "storage_arrived", "storage_left", "storages_stop"]


def storage_arrived(step: Transition, node: str, *, whole: bool) -> None:
    """Take in a storage incarnation, which resumes no role under an old partition_epoch.

    Args:
        whole: Its store is the one that its former incarnations wrote; False after a lost or damaged one.
    """
    if all(placement.epoch == 0 for placement in step.before.partitions):
        _place_first(step)
        return
    for number, placement in enumerate(step.before.partitions):
        if node in placement.in_sync:
            _returned(step, number, placement, node, whole=whole)
        elif node in placement.joining:
            step.place(number, placement.primary, placement.in_sync, _without(placement.joining, node))


def _returned(step: Transition, number: int, placement: PartitionEntry, node: str, *, whole: bool) -> None:
    """Place a partition of which a new incarnation of an in-sync replica may have a whole copy."""
    others = tuple(name for name in placement.in_sync if name != node and step.may_lead(name, placement))
    primary = placement.primary if placement.primary in others else step.take_heir(others) if others else ""
    former = step.before.nodes.get(node)
    if not others and whole:
        step.place(number, node, placement.in_sync, placement.joining)
    elif whole and placement.primary == node and former is not None and former.stops:
        # It stopped in order and nobody took over: all stopped together, and each begins where it was.
        step.place(number, node, step.still_in_sync(placement.in_sync), placement.joining)
    elif whole and (primary == placement.primary or len(others) < step.before.min_in_sync):
        # It has all it acknowledged, and so all that is committed.
        in_sync, joining = step.still_in_sync(placement.in_sync), placement.joining
        if not step.before.has_live(node):  # what was to take its place is not needed
            joining = joining[: max(0, step.before.replicas - len(in_sync))]
        step.place(number, primary, in_sync, joining)
    else:
        # Another replica goes on, or may when it comes back; this one catches up again. One that lost its store
        # is not in sync, though nobody else were: its next incarnation would be taken for whole.
        left = step.still_in_sync(_without(placement.in_sync, node))
        step.place(number, primary, left, (*_without(placement.joining, node), node))


def storage_left(step: Transition, node: str) -> None:
    """Place the partitions of a dead incarnation: a live replica in sync takes over; nobody else ever does."""
    for number, placement in enumerate(step.before.partitions):
        if node not in placement.in_sync and node not in placement.joining:
            continue
        joining = _without(placement.joining, node)
        heirs = tuple(name for name in placement.in_sync if name != node and step.may_lead(name, placement))
        # The dead stays in the in-sync set until a live in-sync replica is primary, and enough of them live.
        in_sync = placement.in_sync
        if any(map(step.stays, heirs)):
            in_sync = still_in_sync(in_sync, partial(step.may_lead, placement=placement), step.before.min_in_sync)
        if placement.primary == node:
            step.place(number, step.take_heir(heirs) if heirs else "", in_sync, joining)
        elif node in placement.in_sync and placement.primary:
            step.place(number, placement.primary, in_sync, joining)
        elif joining != placement.joining:
            step.place(number, placement.primary, placement.in_sync, joining)


def storages_stop(step: Transition) -> None:
    """Relieve the nodes of this step, which stop, of their partitions, as far as others stay that may take them."""
    minimum = step.before.min_in_sync
    for number, placement in enumerate(step.before.partitions):
        after = relieved(placement, step.nodes.__contains__, step.stays, step.take_heir, minimum)
        if after is not None:
            step.partitions[number] = after


def _place_first(step: Transition) -> None:
    """Place every partition for the first time, all copies empty and therefore in sync."""
    nodes = step.ring_nodes(TIER_STORAGE)
    if len(nodes) < step.before.replicas:
        return
    for number, replicas in enumerate(propose_replicas(nodes, len(step.before.partitions), step.before.replicas)):
        step.partitions[number] = PartitionEntry(1, replicas[0], replicas)


def place_partitions(step: Transition, command: PlacePartitions) -> str:
    """Take placements that follow the present ones; the others are left out, or refuse the whole command."""
    for number, entry in command.entries.items():
        refusal = _misfit(step, number, entry)
        if not refusal:
            step.partitions[number] = entry
        elif not command.each:
            return refusal
    return ""


def _misfit(step: Transition, number: int, entry: PartitionEntry) -> str:
    """Return why a placement does not follow the present one."""
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
    """Have a live storage node begin partitions with what it has; all of them, and only those without a primary."""
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


def _without(names: tuple[str, ...], gone: str) -> tuple[str, ...]:
    return tuple(name for name in names if name != gone)
