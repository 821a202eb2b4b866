"""Rules of docs/revocation.md, each removed from a whole cluster, and the schedule that detects it; revoked tokens.

The schedules are those of ``tests/simulation/test_policy_schedules.py``; rules of a single core are in
``policy_rules.py``, ``edge_rights.py`` and ``storage_rights.py``.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest

from access.limits.answer_cache import AnswerCache
from access.policy.view import PolicyView
from edge.clients.fence import Fence
from edge.cluster_policy import ClusterPolicy
from edge.core import EdgeCore
from edge.login.ban_view import BanView
from edge.login.credential_lookups import UserQuestions
from edge.login.logins import ClientLogins
from edge.rights.absent import AbsentUserChecks
from edge.rights.client_rights import ClientRights
from edge.rights.sweep import ReauthorizationPass
from router.policy.verb_waits import SettlementWaits
from tests.access.limits import test_callouts as _A
from tests.edge import test_cluster_policy as _E
from tests.edge.rights import test_sweep as _S
from tests.mutants.seeded import SeededBug, _wrapped
from tests.simulation import test_policy_schedules as _P
from wire.messages.nodes import Registered
from wire.node.lease_holder import LeaseHolder

__all__ = ["POLICY_SCHEDULES"]

BUDGET_S = 20.0


def _patched(witness: Callable[..., None], *arguments: Any) -> Callable[[], None]:
    """Return a witness with its own patch."""

    def run() -> None:
        with pytest.MonkeyPatch.context() as patch:
            witness(patch, *arguments)

    return run


def _not_waited_for(original: Any, self: Any, now: float) -> None:
    del original, now
    self._draining = []


def _begun_anew(original: Any, self: Any, now: float) -> None:
    if self._left is not None and self._begun != self._rights.changes:
        self._left = None
    original(self, now)


def _clear_and_forget_nothing_of_it(original: Any, self: Any) -> None:
    del original
    self._answers.clear()


def _received_is_in_force(original: Any, self: Any, now: float, incarnation: Any, *heard: int) -> None:
    _, in_force, epoch = heard
    original(self, now, incarnation, in_force, in_force, epoch)


def _every_will_fires(original: Any, self: Any, will: Any, client_id: str, retain: bool, then: Any) -> bool:
    del original, self, will, client_id, retain
    then(True)
    return True


def _no_floor(original: Any, self: Any, now: float, message: Any) -> Any:
    if isinstance(message, Registered):
        message = msgspec.structs.replace(message, policy_epoch=0)
    return original(self, now, message)


def _from_when_it_was_noticed(original: Any, self: Any, now: float) -> Any:
    leased = self._node.lease.has_lease(now)
    if self._had_lease and not leased:
        self._had_lease = False
        self._closes_at = now + self._node.limits.fence_close_s
    regained = original(self, now)
    if leased:
        self._loop.set_fence(0)
    return regained


def _judged_at_arrival(patch: pytest.MonkeyPatch) -> None:
    """Authorize a message that waits for its Route at arrival, and use that result at dispatch."""
    rights: dict[int, ClientRights] = {}
    judged: dict[tuple[int, bytes], int] = {}
    admit, authorize, miss = ClientRights.admit, ClientRights.authorize, EdgeCore.miss

    def admitted(self: Any, client: Any, *more: Any) -> None:
        rights[id(client.conn)] = self
        admit(self, client, *more)

    def missed(self: Any, conn: Any, topic: bytes) -> None:
        known = rights.get(id(conn))
        if known is not None:
            judged[id(conn), topic] = authorize(known, conn.context, topic, True)
        miss(self, conn, topic)

    def authorized(self: Any, client: Any, topic: bytes, retain: bool) -> int:
        return judged.get((id(client.conn), topic)) or authorize(self, client, topic, retain)

    patch.setattr(ClientRights, "admit", admitted)
    patch.setattr(ClientRights, "authorize", authorized)
    patch.setattr(EdgeCore, "miss", missed)


def _nobody_asks_for_the_user(original: Any, self: Any, names: Any, heard: Any) -> None:
    del original, self, names, heard


def _bug(name: str, where: str, patch: Any, witness: Callable[[], None], caught_by: str) -> SeededBug:
    return SeededBug(name, where, patch, witness, caught_by, BUDGET_S)


POLICY_SCHEDULES: tuple[SeededBug, ...] = (
    _bug(
        "A1: acknowledged before the last connection",
        "edge/cluster_policy.py ClusterPolicy._is_busy",
        lambda patch: patch.setattr(ClusterPolicy, "_is_busy", lambda *_: False),
        _patched(_P.test_a1_step_is_acknowledged_after_the_last_connection),
        "test_a1_step_is_acknowledged_after_the_last_connection",
    ),
    _bug(
        "A2: old output of a slow reader is not waited for",
        "edge/rights/sweep.py Sweep._drain",
        _wrapped(ReauthorizationPass, "_drain", _not_waited_for),
        _S.test_slow_reader_is_dropped_after_deadline,
        "test_slow_reader_is_dropped_after_deadline",
    ),
    _bug(
        "A4: a message that waits keeps the right of its arrival",
        "edge/rights/client_rights.py ClientRights.authorize",
        _judged_at_arrival,
        _P.test_a4_publish_waits_for_its_route,
        "test_a4_publish_waits_for_its_route",
    ),
    _bug(
        "A5: an answer of before is kept behind a change",
        "access/limits/answer_cache.py AnswerCache.clear",
        _wrapped(AnswerCache, "clear", _clear_and_forget_nothing_of_it),
        _A.test_an_answer_from_before_a_change_of_rights_is_not_kept,
        "test_an_answer_from_before_a_change_of_rights_is_not_kept",
    ),
    _bug(
        "A5: a login that waits for its hash is not authorized again",
        "edge/login/logins.py ClientLogins.permissions_removed",
        lambda patch: patch.setattr(ClientLogins, "permissions_removed", lambda _: None),
        partial(_P.test_a5_late_success_fills_no_cache, 0.1),
        "test_a5_late_success_fills_no_cache",
    ),
    _bug(
        "A6: each step begins the pass anew",
        "edge/rights/sweep.py Sweep.step",
        _wrapped(ReauthorizationPass, "step", _begun_anew),
        _S.test_frequent_policy_steps_do_not_restart_a_pass,
        "test_frequent_policy_steps_do_not_restart_a_pass",
    ),
    _bug(
        "A7: who works on a step counts as deaf",
        "router/policy/verb_waits.py SettlementWaits.record_heartbeat",
        _wrapped(SettlementWaits, "record_heartbeat", _received_is_in_force),
        _patched(_P.test_a7_long_sweep_does_not_end_the_lease),
        "test_a7_long_sweep_does_not_end_the_lease",
    ),
    _bug(
        "B1: pushes are not judged at the write",
        "edge/rights/client_rights.py ClientRights.judge_deliveries",
        lambda patch: patch.setattr(ClientRights, "judge_deliveries", lambda *_: None),
        _P.test_b1_push_is_in_flight,
        "test_b1_push_is_in_flight",
    ),
    _bug(
        "B2: a will that fires late is not judged",
        "edge/rights/absent.py AbsentUsers.judge_will",
        _wrapped(AbsentUserChecks, "judge_will", _every_will_fires),
        partial(_P.test_b2_will_fires_late, True),
        "test_b2_will_fires_late",
    ),
    _bug(
        "C1: a new incarnation is content with any policy",
        "wire/node/lease_holder.py LeaseHolder.handle",
        _wrapped(LeaseHolder, "handle", _no_floor),
        _E.test_no_client_before_the_policy_of_the_registration,
        "test_no_client_before_the_policy_of_the_registration",
    ),
    _bug(
        "C3: the fence begins when its time is noticed",
        "edge/clients/fence.py Fence.step",
        _wrapped(Fence, "step", _from_when_it_was_noticed),
        partial(_P.test_c3_c8_stopped_edge_serves_no_client_when_it_resumes, ""),
        "test_c3_c8_stopped_edge_serves_no_client_when_it_resumes",
    ),
    _bug(
        "C8: the clock is not read before a flush",
        "edge/core.py EdgeCore.fence_over",
        lambda patch: patch.setattr(EdgeCore, "fence_over", lambda *_: None),
        partial(_P.test_c3_c8_stopped_edge_serves_no_client_when_it_resumes, "flush"),
        "test_c3_c8_stopped_edge_serves_no_client_when_it_resumes",
    ),
    _bug(
        "C7: an edge that hears no step keeps its lease",
        "router/policy/verb_waits.py SettlementWaits.find_overdue",
        lambda patch: patch.setattr(SettlementWaits, "find_overdue", lambda *_: None),
        _P.test_c7_alive_edge_that_misses_steps,
        "test_c7_alive_edge_that_misses_steps",
    ),
    _bug(
        "D1: a whole view asks for no user",
        "edge/login/credential_lookups.py UserQuestions.ask",
        _wrapped(UserQuestions, "ask", _nobody_asks_for_the_user),
        _E.test_whole_view_checks_every_cluster_user,
        "test_whole_view_checks_every_cluster_user",
    ),
    _bug(
        "a revoked token lets in",
        "edge/login/ban_view.py BanView.is_token_revoked",
        lambda patch: patch.setattr(BanView, "is_token_revoked", lambda *_: False),
        _E.test_revoked_token_ends_its_connections_and_refuses_new_ones,
        "test_revoked_token_ends_its_connections_and_refuses_new_ones",
    ),
    _bug(
        "a connection outlives its revoked token",
        "edge/cluster_policy.py ClusterPolicy._apply_or_reject",
        _wrapped(
            PolicyView,
            "is_revoked",
            lambda original, self, kind, *what: kind != "token" and original(self, kind, *what),
        ),
        _E.test_revoked_token_ends_its_connections_and_refuses_new_ones,
        "test_revoked_token_ends_its_connections_and_refuses_new_ones",
    ),
)
