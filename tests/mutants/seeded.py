"""Seeded bugs in storage, router, edge and jobs: each removes one rule, and names the test that must detect it.

A patch replaces a method for the length of one test. The bug's name gives the omitted rule; the rest of the method
works as before where possible. Bugs of Raft, of gossip and of replication have their own tables
(``raft.py``, ``tests/membership/test_mutants.py``, ``tests/storage/test_replication_mutants.py``).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import msgspec
import pytest

from edge.routes.route_cache import RouteCache
from router.map.leases import LeaseTable
from router.routes.sender_routes import SenderRoutes
from router.routes.shard import RouteShard
from storage.core import StorageCore
from storage.messages.inbound import InboundIdentifiers
from storage.messages.origins import Origins
from storage.messages.outbound import InFlightEntries
from storage.messages.retained import RetainedStore
from storage.replication.backup import PartitionBackup
from storage.sessions.ownership import Owners
from storage.sessions.subscriptions import Subscriptions
from storage.sessions.wills import Wills
from storage.state.durable_sessions import DurableSession
from storage.state.order_window import OrderWindow
from storage.state.partition import Partition
from storage.state.session_window import InFlight
from tests.mutants.scenarios import SCENARIOS
from tests.simulation.simulation import Options, run_seed
from tests.storage import (
    test_backup,
    test_ownership,
    test_partition,
    test_retained_reads,
    test_schedules_replication,
    test_wills,
)
from tests.storage.requests import WILL
from tests.storage.storage_cluster import Cluster
from wire.node.lease_holder import LeaseHolder

__all__ = ["BUGS", "SeededBug", "caught_by"]

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class SeededBug:
    """One rule less.

    Attributes:
        witness: The test that must fail; it passes without the bug.
        budget_s: Processor time within which it does.
    """

    name: str
    where: str
    patch: Patch
    witness: Callable[[], None]
    said: str
    budget_s: float = 5.0


def caught_by(bug: SeededBug) -> str | None:
    """Return the first line of the witness's failure with the bug applied, None if it passed."""
    with pytest.MonkeyPatch.context() as patch:
        bug.patch(patch)
        try:
            bug.witness()
        except Exception as error:  # a bug may also run into an assertion of the code itself
            return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


def _wrapped(owner: type | ModuleType, name: str, wrap: Callable[..., Any]) -> Patch:
    """Replace a method by one that gets the original first."""
    original = getattr(owner, name)

    def method(self: Any, *arguments: Any, **options: Any) -> Any:
        return wrap(original, self, *arguments, **options)

    return lambda patch: patch.setattr(owner, name, method)


def _nothing(*_: Any, **__: Any) -> None:
    """Replace a function without effect."""


def _without(owner: type | ModuleType, name: str) -> Patch:
    return lambda patch: patch.setattr(owner, name, _nothing)


# --- storage


def _commit_before_sync(original: Any, partition: Partition) -> Any:
    partition.commit_index = max(partition.commit_index, partition.meta.op_index)
    return original(partition)


def _take_any_epoch(original: Any, replica: PartitionBackup, message: Any) -> Any:
    return original(
        replica, msgspec.structs.replace(message, partition_epoch=max(replica.epoch, message.partition_epoch))
    )


def _believe_any_ack(original: Any, outbound: InFlightEntries, ack: Any) -> None:
    session = outbound._partition.sessions.get(ack.session)
    original(outbound, msgspec.structs.replace(ack, owner_epoch=session.owner_epoch) if session else ack)


def _close_whoever_holds(original: Any, table: Owners, request: Any, edge: str) -> None:
    holder = table.holders.get(request.client_id)
    owner_epoch = holder.owner_epoch if holder else request.owner_epoch
    original(table, msgspec.structs.replace(request, owner_epoch=owner_epoch), edge)


def _pubrel_at_once(
    original: Any, outbound: InFlightEntries, session: DurableSession, session_seq: int, flight: InFlight
) -> None:
    partition = outbound._partition
    held, partition._outputs = partition._outputs, []
    original(outbound, session, session_seq, flight)
    partition._at_once.extend(partition._outputs)
    partition._outputs = held


def _answer_subscribe_at_once(original: Any, subscriptions: Subscriptions, request: Any, edge: str) -> None:
    original(subscriptions, request, edge)
    subscriptions._answer_waiting([subscription.topic_filter for subscription in request.subscriptions])


def _new_counter_for_a_repeat(original: Any, inbound: InboundIdentifiers, request: Any, edge: str) -> None:
    session = inbound._partition.sessions.get(request.session)
    if session is not None:
        session.inbound.pop(request.packet_identifier, None)
    original(inbound, request, edge)


def _counter_dies_with_its_row(original: Any, inbound: InboundIdentifiers, request: Any, edge: str) -> None:
    partition = inbound._partition
    touched = dict(partition.touched)
    original(inbound, request, edge)
    partition.touched.clear()
    partition.touched.update(touched)


def _will_of_a_clean_end(_: Any, wills: Wills, client_id: str) -> None:
    wills._fire(wills._wills[client_id])


def _do_not_wait_for_the_kick(_: Any, table: Owners, opening: Any) -> None:
    table._finish(opening, clean=False)


def _empty_is_a_value(original: Any, store: RetainedStore, message: Any, incarnation: int) -> None:
    original(store, message if message.payload else msgspec.structs.replace(message, payload=b" "), incarnation)


def _identifiers_begin_again(original: Any, session: DurableSession, entry: Any, size: int) -> InFlight:
    flight: InFlight = original(session, entry, size)
    flight.packet_identifier = 1
    return flight


def _turn_that_says_no_end(original: Any, core: StorageCore, *taken: Any, **options: Any) -> Any:
    ready = original(core, *taken, **options)
    ready.goes_on = True
    return ready


# --- router and edge


def _suback_before_invalidation(original: Any, shard: RouteShard, peer: str, request: Any) -> None:
    before = len(shard._sends)
    original(shard, peer, request)
    for item in shard._invalidations.values():
        for waiter in item.waiters:
            shard._sends[before:] = [(waiter.peer, waiter.reply)]
        item.waiters.clear()


def _remove_whatever_the_version(original: Any, shard: RouteShard, peer: str, request: Any) -> None:
    original(shard, peer, msgspec.structs.replace(request, route_version=1 << 60))


def _lease_from_the_reply(original: Any, holder: LeaseHolder, now: float, message: Any) -> bool:
    late = hasattr(message, "sent_at") and hasattr(message, "lease_s")
    return bool(original(holder, now, msgspec.structs.replace(message, sent_at=now) if late else message))


def _grant_the_dying(original: Any, leases: LeaseTable, now: float, context: int, cluster_map: Any) -> Any:
    leases._dying.clear()
    return original(leases, now, context, cluster_map)


def _leases_of_before_are_over(original: Any, leases: LeaseTable, now: float, cluster_map: Any) -> None:
    original(leases, now - leases.lease_s - 1.0, cluster_map)


def _fastest_settles(_: Any, leases: LeaseTable, cluster_map: Any) -> int:
    return max([0, *leases._acknowledged.values()]) or int(cluster_map.epoch)


def _answer_survives(_: Any, cache: RouteCache, router: str, order: Any, _now: float) -> None:
    from wire.messages.routes import Invalidated

    cache._tell(router, Invalidated(order.number, order.shard, order.shard_epoch))


def _void_answers_are_kept(original: Any, cache: RouteCache, router: str, answer: Any) -> bool:
    for request in cache._requests.values():
        request.number = cache._void.done
    return bool(original(cache, router, answer))


def _above_the_window(original: Any, window: OrderWindow) -> Any:
    window._bounds = window._bounds._replace(orders=1_000, span=1 << 60)
    return original(window)


def _seed(seed: int, options: Options | None = None) -> Callable[[], None]:
    def run() -> None:
        result = run_seed(seed, options or Options(seconds=4.0))
        assert not result.failures, result.failures[0]

    return run


def _of_three(test: Callable[[Cluster], None]) -> Callable[[], None]:
    return lambda: test(Cluster(nodes=3, replicas=3, min_in_sync=2))


def _will(clean: bool) -> Callable[[], None]:
    return lambda: test_wills.test_will_fires_once_or_not_at_all(60, WILL, clean, 0.5, 0 if clean else 1, False)


def _bug(
    name: str, owner: type | ModuleType, method: str, wrap: Any, witness: Callable[[], None], said: str = ""
) -> SeededBug:
    """Return one row of the table; without ``wrap`` the method does no work."""
    module, dot = (owner.__name__, "") if isinstance(owner, ModuleType) else (owner.__module__, f"{owner.__name__}.")
    where = f"{module.replace('.', '/')}.py {dot}{method}"
    patch = _without(owner, method) if wrap is None else _wrapped(owner, method, wrap)
    return SeededBug(name, where, patch, witness, said or witness.__name__)


_P, _O, _S, _W = test_partition, test_ownership, test_schedules_replication, test_wills

BUGS: tuple[SeededBug, ...] = (
    _bug(
        "acknowledge before sync",
        Partition,
        "committed_outputs",
        _commit_before_sync,
        _P.test_outputs_wait_for_the_sync,
    ),
    _bug(
        "stale primary is believed",
        PartitionBackup,
        "append",
        _take_any_epoch,
        test_backup.test_replica_rejects_lower_epochs_and_ignores_repeats,
    ),
    _bug(
        "origin not remembered across failover",
        Origins,
        "restore",
        None,
        _S.test_s9_message_below_the_senders_counter_is_a_repeat,
    ),
    _bug(
        "old connection's acknowledgement counts",
        InFlightEntries,
        "acknowledged",
        _believe_any_ack,
        _O.test_old_connection_at_the_same_edge_cannot_acknowledge,
    ),
    _bug(
        "old connection's close ends the new one",
        Owners,
        "close",
        _close_whoever_holds,
        _O.test_old_connection_has_no_effect_after_a_takeover,
    ),
    _bug(
        "packet identifier in use is assigned again",
        DurableSession,
        "_identify",
        _identifiers_begin_again,
        _S.test_s22_queue_longer_than_65535_reuses_identifiers,
    ),
    _bug(
        "PUBREL before PUBREC is committed",
        InFlightEntries,
        "_push_pubrel",
        _pubrel_at_once,
        _S.test_s10_pubrel_waits_for_the_commit_of_pubrec,
    ),
    _bug(
        "repeated QoS 2 identifier gets a new origin",
        InboundIdentifiers,
        "record",
        _new_counter_for_a_repeat,
        _P.test_released_identifier_keeps_its_counter_after_a_crash,
    ),
    _bug(
        "released counter is assigned again",
        InboundIdentifiers,
        "release",
        _counter_dies_with_its_row,
        _P.test_released_identifier_keeps_its_counter_after_a_crash,
    ),
    _bug(
        "SUBACK before the route is registered",
        Subscriptions,
        "subscribe",
        _answer_subscribe_at_once,
        _P.test_unsubscribe_before_suback_answers_both_and_ignores_late_routes_added,
    ),
    _bug("expired session stays", Owners, "expire", None, _P.test_sessions_expire_by_the_served_clock_only),
    _bug(
        "CONNACK does not wait for the kick",
        Owners,
        "_start",
        _do_not_wait_for_the_kick,
        _O.test_takeover_waits_at_most_200_ms_for_the_kick,
    ),
    _bug("kick is never repeated", Owners, "kick_again", None, _O.test_takeover_waits_at_most_200_ms_for_the_kick),
    _bug(
        "will fires after DISCONNECT",
        Wills,
        "_discard",
        _will_of_a_clean_end,
        _will(True),
        "test_will_fires_once_or_not_at_all",
    ),
    _bug(
        "wills of a dead edge are not published",
        Owners,
        "edge_dead",
        None,
        _W.test_death_of_an_edge_fires_its_wills,
    ),
    replace(
        _bug(
            "wills in flight exceed the receivers' deduplication",
            OrderWindow,
            "send_some",
            _above_the_window,
            _seed(103, Options(fleet=True)),
            "simulation, --fleet, seed 103",
        ),
        budget_s=60.0,
    ),
    _bug(
        "wills are not read from disk",
        Owners,
        "restore_will",
        None,
        _S.test_s19_will_survives_failover_and_fires_once,
    ),
    _bug(
        "an empty retained payload is kept",
        RetainedStore,
        "store",
        _empty_is_a_value,
        test_retained_reads.test_retained_store_keeps_the_newest_and_clears_on_empty_payload,
    ),
    _bug(
        "live messages overtake retained copies",
        InFlightEntries,
        "hold",
        None,
        test_retained_reads.test_s14_retained_and_live_copy_are_delivered_once,
    ),
    _bug(
        "a quantum exceeds an expired time budget",
        StorageCore,
        "handle",
        _turn_that_says_no_end,
        _seed(1000),
        "seed 1000 of the simulation",
    ),
    _bug(
        "SUBACK before invalidation",
        RouteShard,
        "add",
        _suback_before_invalidation,
        SCENARIOS.cached_answer_goes_before_suback,
    ),
    _bug(
        "cached answer survives its invalidation",
        RouteCache,
        "invalidate",
        _answer_survives,
        SCENARIOS.cached_answer_goes_before_suback,
    ),
    _bug(
        "void answer is kept",
        RouteCache,
        "resolved",
        _void_answers_are_kept,
        SCENARIOS.answer_overtaken_by_its_invalidation_is_void,
    ),
    _bug(
        "late removal takes a newer route",
        RouteShard,
        "remove",
        _remove_whatever_the_version,
        SCENARIOS.late_remove_leaves_a_newer_route,
    ),
    _bug(
        "former primary registers routes",
        SenderRoutes,
        "accept",
        lambda *_: True,
        SCENARIOS.former_primary_registers_nothing,
    ),
    _bug(
        "invalidation passes a retained write",
        RouteCache,
        "retained_started",
        None,
        SCENARIOS.invalidation_waits_for_retained_write,
    ),
    _bug(
        "lease counts from the reply",
        LeaseHolder,
        "handle",
        _lease_from_the_reply,
        SCENARIOS.lease_counts_from_the_question,
    ),
    _bug(
        "heartbeat granted after death was proposed",
        LeaseTable,
        "round_done",
        _grant_the_dying,
        SCENARIOS.no_grant_after_a_death_is_proposed,
    ),
    _bug(
        "new leader ignores old leases",
        LeaseTable,
        "begin",
        _leases_of_before_are_over,
        SCENARIOS.new_leader_waits_out_old_leases,
    ),
    _bug(
        "the fastest node settles an epoch",
        LeaseTable,
        "settled_epoch",
        _fastest_settles,
        SCENARIOS.map_is_settled_when_everybody_says_so,
    ),
)
