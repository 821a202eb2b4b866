"""Rules of routes, leases and placement, each removed from a whole simulated cluster, and the script that detects
it.

The scripts are the schedules of ``test_route_schedules.py``, ``test_lease_schedules.py`` and ``test_link_schedules.py``
in ``tests/simulation``: each passes with the rules, and fails without its own. Rules of a single core are in
``seeded.py``.
"""

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from edge.cluster.partition_requests import PartitionRequests
from edge.publishing.recording import Recording
from edge.routes.route_cache import RouteCache
from router.map import machine, partition_rules, shard_rules
from router.map.commands import Command, Delegate
from router.map.leases import LeaseTable
from router.map.transition import Transition
from router.placement.reachability import Reachability
from router.routes.owned_shards import OwnedShards
from router.routes.shard import RouteShard
from storage.messages.origins import Origins
from storage.messages.publishers import Publishers
from storage.sessions.subscriptions import Subscriptions
from storage.state.partition import Partition
from tests.mutants.seeded import (
    Patch,
    SeededBug,
    _bug,
    _grant_the_dying,
    _void_answers_are_kept,
    _without,
    _wrapped,
)
from tests.simulation import test_lease_schedules, test_link_schedules, test_route_schedules
from tests.simulation.process import Process
from wire.links.link import LinkCore
from wire.links.roster import Roster
from wire.messages.batches import OriginKind, PublishMessage
from wire.messages.cluster_map import ClusterMap
from wire.messages.hello import PeerKey
from wire.messages.nodes import HeartbeatReply
from wire.messages.routes import RemoveRoutes
from wire.node.lease_holder import LeaseHolder
from wire.node.route_registrar import RouteRegistrar

__all__ = ["RULES"]

BUDGET_S = 10.0


def _only_the_delegation(original: Any, step: Transition, command: Any) -> Any:
    refusal = original(step, command)
    former = step.before.shards
    step.shards = {number: shard for number, shard in step.shards.items() if number >= len(former)}
    return refusal


def _partitions_report_nothing(
    original: Any, shard: RouteShard, number: int, epoch: int, edges: Any, _: Any, *rest: Any
) -> None:
    original(shard, number, epoch, edges, (), *rest)


def _no_registrations(original: Any, shard: RouteShard, *arguments: Any) -> None:
    original(shard, *arguments)
    shard.unregistered.clear()


def _asked_is_standing(_: Any, registrar: RouteRegistrar, name: str) -> bool:
    return name in registrar._holders


def _hold_returns_what_is_new(original: Any, registrar: RouteRegistrar, names: list[str], now: float) -> list[str]:
    pending = set(registrar._pending)
    return [name for name in original(registrar, names, now) if name not in pending]


def _restart_keeps_its_shards(original: Any, step: Transition, restarted: str) -> None:
    original(step, "")
    step.shards = {
        number: shard for number, shard in step.shards.items() if step.before.shards[number].owner != restarted
    }


def _former_owner_goes_on(original: Any, owned: OwnedShards, judge: Any, peer: Any, message: Any) -> int:
    if message.shard not in owned.shards:
        owned.shards[message.shard] = RouteShard(message.shard, message.shard_epoch, [], [], 100, judge.now)
        steps = int(original(owned, judge, peer, message))
        for to, answer in owned.shards.pop(message.shard).take_sends():
            owned._send_message(to, answer)
        return steps
    return int(original(owned, judge, peer, message))


def _former_answers_count(original: Any, cache: RouteCache, shard: int, shard_epoch: int) -> bool:
    return bool(original(cache, shard, shard_epoch)) or shard < len(cache._map().shards)


def _a_minute(original: Any, holder: LeaseHolder, now: float, message: Any) -> bool:
    taken = bool(original(holder, now, message))
    if isinstance(message, HeartbeatReply) and message.lease_s:
        holder.lease_until = now + 60.0
    return taken


def _restored_is_standing(
    original: Any, subscriptions: Subscriptions, session: Any, subscription: Any, **options: Any
) -> None:
    original(subscriptions, session, subscription, **options)
    subscriptions.restore_standing(subscription.topic_filter)


def _of_two(one: Patch, other: Patch) -> Patch:
    def both(patch: pytest.MonkeyPatch) -> None:
        one(patch)
        other(patch)

    return both


def _alive_before_listed(original: Any, cluster_map: ClusterMap, node: str, incarnation: int) -> bool:
    entry = cluster_map.nodes.get(node)
    return entry is None or entry.incarnation < incarnation or bool(original(cluster_map, node, incarnation))


def _registered_before_listed(original: Any, roster: Roster, peer: PeerKey) -> bool:
    return bool(original(roster, peer)) or not roster.is_over(peer)


def _removed_at_once(original: Any, partition: Partition, node: str, message: Any) -> None:
    original(partition, node, message)
    if isinstance(message, RemoveRoutes):
        partition._at_once.append(partition._outputs.pop())


def _clock_stood_still(_: Any, process: Process, seconds: float) -> None:
    process._offset -= seconds


def _nothing_is_sent_again(original: Any, link: LinkCore, peer_taken: int) -> None:
    original(link, peer_taken)
    link._output.clear()
    link._output_bytes = 0


def _released_is_forgotten(original: Any, origins: Origins, message: PublishMessage, *sender: Any) -> bool:
    return message.origin_kind != OriginKind.SESSION and original(origins, message, *sender)


def _parks_nobody(original: Any, recording: Recording, client: Any, *arguments: Any) -> None:
    original(recording, client, *arguments)
    recording._loop.resume(client.conn)


def _last_first(original: Any, requests: PartitionRequests, partition: int, now: float) -> None:
    waiting = requests._pending.get(partition, {})
    requests._pending[partition] = dict(reversed(waiting.items()))
    original(requests, partition, now)


def _nobody_in_sync(original: Any, step: Transition, node: str) -> None:
    original(step, node)
    for number, entry in step.partitions.items():
        if not entry.primary:
            step.place(number, "", (), entry.joining)


def _in_the_table(command: type[Command], wrap: Any) -> Patch:
    rule = machine.MAP_RULES[command]
    return lambda patch: patch.setitem(machine.MAP_RULES, command, lambda step, item: wrap(rule, step, item))


def _rule(
    name: str, owner: type | ModuleType, method: str, wrap: Any, witness: Callable[[], None], also: Patch | None = None
) -> SeededBug:
    bug = _bug(name, owner, method, wrap, witness)
    return replace(bug, patch=_of_two(bug.patch, also) if also else bug.patch, budget_s=BUDGET_S)


RULES: tuple[SeededBug, ...] = (
    _rule(
        "A1: a delegation raises no shard_epoch",
        shard_rules,
        "delegate",
        _only_the_delegation,
        test_route_schedules.test_a1_delegation_moves_a_topic_without_a_new_shard_owner,
        _in_the_table(Delegate, _only_the_delegation),
    ),
    _rule(
        "A2: reports of partitions are not waited for",
        RouteShard,
        "__init__",
        _partitions_report_nothing,
        test_route_schedules.test_a2_partition_primary_dies_before_its_report,
    ),
    _rule(
        "A3: cached topics are not registered",
        RouteShard,
        "__init__",
        _no_registrations,
        test_route_schedules.test_a3_new_owner_of_a_filter_with_a_retained_publish_in_flight,
    ),
    _rule(
        "A4: a filter that was asked for counts as standing",
        RouteRegistrar,
        "stands",
        _asked_is_standing,
        test_route_schedules.test_a4a_filter_with_a_pending_first_registration,
        _wrapped(RouteRegistrar, "hold", _hold_returns_what_is_new),
    ),
    _rule(
        "A4: what was committed counts as standing",
        Subscriptions,
        "restore",
        _restored_is_standing,
        test_route_schedules.test_a4b_subscription_whose_route_was_lost_with_the_primary,
    ),
    _rule(
        "A5: a restarted router keeps its shards",
        shard_rules,
        "routers_changed",
        _restart_keeps_its_shards,
        test_route_schedules.test_a5_shard_owner_restarts_within_its_lease,
    ),
    _rule(
        "A6: a former owner goes on",
        OwnedShards,
        "take",
        _former_owner_goes_on,
        test_route_schedules.test_a6_sender_without_the_new_owner_in_its_map,
        _wrapped(RouteCache, "_is_owned", _former_answers_count),
    ),
    _rule(
        "A7: a void answer is kept",
        RouteCache,
        "resolved",
        _void_answers_are_kept,
        test_route_schedules.test_a7_invalidation_overtakes_the_answer,
    ),
    _rule(
        "A8: an incarnation is served before the map lists it",
        ClusterMap,
        "is_alive",
        _alive_before_listed,
        test_route_schedules.test_a8_edge_joins_through_a_lagging_router,
        _wrapped(Roster, "is_registered", _registered_before_listed),
    ),
    _rule(
        "A9: a removal leaves before it is committed",
        Partition,
        "send_control",
        _removed_at_once,
        test_route_schedules.test_a9_unsubscribe_that_was_not_committed,
    ),
    _rule(
        "A10: an invalidation passes a retained write",
        RouteCache,
        "retained_started",
        None,
        test_route_schedules.test_a10_retained_publish_in_flight_to_its_partition,
        _without(RouteCache, "retained_finished"),
    ),
    _rule(
        "B1: granted while the death is under way",
        LeaseTable,
        "round_done",
        _grant_the_dying,
        test_lease_schedules.test_b1_lease_granted_while_the_death_is_pending,
    ),
    _rule(
        "B2: a lease of a minute",
        LeaseHolder,
        "handle",
        _a_minute,
        test_lease_schedules.test_b2_edge_is_stopped_with_a_publish_in_its_socket,
    ),
    _rule(
        "B3: the clock stands still in a suspend",
        Process,
        "overslept",
        _clock_stood_still,
        test_lease_schedules.test_b3_edge_wakes_from_a_suspend,
    ),
    _rule(
        "B4: a second incarnation is let in at once",
        LeaseTable,
        "has_certainly_expired",
        lambda *_: True,
        test_lease_schedules.test_b4_new_incarnation_without_proof_waits_for_the_old_lease,
    ),
    _rule(
        "B5: a fenced edge goes on",
        LeaseHolder,
        "handle",
        _a_minute,
        test_lease_schedules.test_b5_fenced_edge_sends_no_suback_and_disconnects_its_clients,
    ),
    _rule(
        "C1: a link that is made again sends nothing again",
        LinkCore,
        "connected",
        _nothing_is_sent_again,
        test_link_schedules.test_c1_links_break_without_a_map_change,
    ),
    _rule(
        "C2: what was released is forgotten",
        Origins,
        "is_repeat",
        _released_is_forgotten,
        test_link_schedules.test_c2_frame_older_than_the_release,
        _wrapped(Publishers, "observe", lambda *_: False),  # which would drop the old edge's frame first
    ),
    _rule(
        "C4: what waits for a partition loses its order",
        PartitionRequests,
        "placement_changed",
        _last_first,
        test_link_schedules.test_c4_two_messages_wait_for_their_record,
        _wrapped(Recording, "_request_record", _parks_nobody),
    ),
    _rule(
        "D1: complaints end no lease",
        Reachability,
        "worst_connected",
        lambda *_: "",
        test_link_schedules.test_d1_edge_unreachable_for_the_shard_owner,
    ),
    _rule(
        "D2: the last in sync are struck off",
        partition_rules,
        "storage_left",
        _nobody_in_sync,
        test_link_schedules.test_d2_every_storage_node_was_declared_dead,
    ),
)
