"""The rules for route shards: their owners after a router's arrival or end, by plan, or pinned to a topic prefix.

Each change of an owner, and each new incarnation of one, raises the shard_epoch. Senders then register their routes
again, and edges drop the former owner's answers.
"""

from router.map.commands import Delegate, PlaceShards
from router.map.transition import Transition
from router.placement.ring import propose_owners
from wire.messages.cluster_map import Delegation, ShardEntry
from wire.messages.hello import TIER_ROUTER

__all__ = ["delegate", "place_shards", "routers_changed"]


def routers_changed(step: Transition, restarted: str) -> None:
    """Assign every shard to a live router, at the next shard_epoch where the owner changes.

    A joining router gets its share from the others without an operator.

    Args:
        restarted: Router with a new incarnation, whose shards get a new epoch in any case; "" if there is none.
    """
    live = step.ring_nodes(TIER_ROUTER)
    if not live:
        return
    proposal = propose_owners(live, step.before.base_shards)
    giving_up = {name for name in step.nodes if step.nodes[name].stops}
    for number, shard in enumerate(step.before.shards):
        pinned = next((rule.pin for rule in step.before.delegations if rule.shard == number), "")
        owner = (
            pinned if pinned and step.is_alive(pinned) and pinned not in giving_up else proposal[number % len(proposal)]
        )
        if number < len(proposal) and not pinned:
            owner = proposal[number]
        if shard.owner != owner or shard.owner == restarted:
            step.shards[number] = ShardEntry(shard.epoch + 1, owner)


def place_shards(step: Transition, command: PlaceShards) -> str:
    """Assign shards to live routers, all or none; a shard with a named epoch must be at it."""
    for number, owner in command.owners.items():
        if not 0 <= number < len(step.before.shards):
            return f"no shard {number}"
        entry = step.before.nodes.get(owner)
        if entry is None or not entry.alive or entry.tier != TIER_ROUTER:
            return f"{owner} is not a live router"
        if entry.stops:
            return f"{owner} stops"
        at = step.before.shards[number].epoch
        if command.epochs.get(number, at) != at:
            return f"shard {number} is at epoch {at}, not {command.epochs[number]}"
        step.shards[number] = ShardEntry(step.before.shards[number].epoch + 1, owner)
    return ""


def delegate(step: Transition, command: Delegate) -> str:
    """Set or remove the jurisdiction of a topic prefix; a pinned prefix has its own shard.

    Every shard's epoch is raised: filters and cached topics get other keys and are registered again.
    """
    levels = command.prefix.split("/")
    if not command.prefix or "+" in command.prefix or "#" in command.prefix:
        return f"{command.prefix!r} is not a topic prefix (whole levels, no wildcard)"
    if command.depth and command.depth < len(levels):
        return f"depth {command.depth} is less than the {len(levels)} levels of {command.prefix!r}"
    if command.pin and not step.is_alive(command.pin):
        return f"{command.pin} is not a live router"
    known = {rule.prefix: rule for rule in step.before.delegations}
    former = known.pop(command.prefix, None)
    shards = len(step.before.shards)
    if command.depth:
        number = -1
        if command.pin:
            number = former.shard if former is not None and former.shard >= 0 else shards
        known[command.prefix] = Delegation(command.prefix, command.depth, command.pin, number)
        if number == shards:
            step.shards[number] = ShardEntry(1, command.pin)
        elif number >= 0:
            step.shards[number] = ShardEntry(step.before.shards[number].epoch + 1, command.pin)
    elif former is None:
        return f"no delegation of {command.prefix!r}"
    step.delegations = tuple(known[prefix] for prefix in sorted(known))
    for number, shard in enumerate(step.before.shards):
        step.shards.setdefault(number, ShardEntry(shard.epoch + 1, shard.owner))
    return ""
