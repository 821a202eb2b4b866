"""The rules for nodes in the map: registration, death, stop, drain and removal.

A node's change moves partitions (``partition_rules``) or shards (``shard_rules``) in the same step. Each rule takes a
transition and a command, and returns "" or a refusal. The transition of a refused command is dropped, so the map stays
unchanged.
"""

import msgspec

from router.map import partition_rules, shard_rules
from router.map.commands import DeclareDead, ForgetNode, RegisterNode, SetAdminState, StopNodes
from router.map.transition import Transition
from wire.messages.cluster_map import NodeState
from wire.messages.hello import TIER_ROUTER, TIER_STORAGE

__all__ = ["declare_dead", "forget_node", "register", "set_admin_state", "stop_nodes"]


def register(step: Transition, command: RegisterNode) -> str:
    """Admit an incarnation above all former ones of its name; the former one ends with this step.

    A live incarnation that registers again changes nothing. The administrative state persists. So does the longer fence
    time: the former incarnation may still serve, and no later map shows its value.
    """
    entry = command.entry
    former = step.before.nodes.get(entry.node)
    if former is not None and former.tier != entry.tier:
        return f"node {entry.node} is a {former.tier}, not a {entry.tier}"
    if former is not None and former.incarnation >= entry.incarnation:
        if former.incarnation == entry.incarnation and former.alive:
            return ""
        return (
            f"incarnation {entry.incarnation} of {entry.node} is over, {former.incarnation} was registered: "
            "start it again, with the clock right if its data folder is new"
        )
    if former is not None:
        fence_close_s = max(entry.fence_close_s, former.fence_close_s)
        entry = msgspec.structs.replace(entry, admin_state=former.admin_state, fence_close_s=fence_close_s)
    step.nodes[entry.node] = msgspec.structs.replace(entry, state=NodeState.ACTIVE)
    if entry.tier == TIER_STORAGE:
        partition_rules.storage_arrived(step, entry.node, whole=command.whole)
    elif entry.tier == TIER_ROUTER:
        shard_rules.routers_changed(step, entry.node)
    return ""


def declare_dead(step: Transition, command: DeclareDead) -> str:
    """End an incarnation; its roles move to other nodes in the same step."""
    entry = step.before.nodes.get(command.node)
    if entry is None or entry.incarnation != command.incarnation:
        return f"{command.node} is not at incarnation {command.incarnation}"
    if not entry.alive:
        return ""
    step.nodes[entry.node] = msgspec.structs.replace(entry, state=NodeState.DEAD)
    if entry.tier == TIER_STORAGE:
        partition_rules.storage_left(step, entry.node)
    elif entry.tier == TIER_ROUTER:
        shard_rules.routers_changed(step, "")
    return ""


def stop_nodes(step: Transition, command: StopNodes) -> str:
    """Move the roles of all stopping incarnations in one step, so that none inherits from another."""
    for name, incarnation in sorted(command.incarnations.items()):
        entry = step.before.nodes.get(name)
        if entry is not None and entry.incarnation == incarnation and entry.alive and not entry.stops:
            step.nodes[name] = msgspec.structs.replace(entry, state=NodeState.DRAINING)
    tiers = {entry.tier for entry in step.nodes.values()}
    if TIER_STORAGE in tiers:
        partition_rules.storages_stop(step)
    if TIER_ROUTER in tiers:
        shard_rules.routers_changed(step, "")
    return ""


def set_admin_state(step: Transition, command: SetAdminState) -> str:
    """Set a node's administrative state, which plans read; this step moves no roles."""
    entry = step.before.nodes.get(command.node)
    if entry is None:
        return f"unknown node {command.node}"
    if entry.admin_state != command.state:
        step.nodes[entry.node] = msgspec.structs.replace(entry, admin_state=command.state)
    return ""


def forget_node(step: Transition, command: ForgetNode) -> str:
    """Remove a dead node from the map, unless it may hold the last whole copy of a partition."""
    entry = step.before.nodes.get(command.node)
    if entry is None:
        return f"unknown node {command.node}"
    if entry.alive:
        return f"{command.node} is alive; stop it first"
    for number, placement in enumerate(step.before.partitions):
        if command.node in placement.in_sync:
            return f"{command.node} still holds partition {number}; add another storage node and rebalance first"
    step.forgotten.append(command.node)
    return ""
