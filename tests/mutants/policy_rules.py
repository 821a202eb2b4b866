"""Rules of the cluster's policy, each removed, and the script or seed that detects it.

Rules of steps and chains are in ``access_rules.py``, those of owners and recheck marks in ``storage_rights.py``.
"""

from functools import partial
from typing import Any

import msgspec

from access.policy import commands as c
from access.policy.pages import PolicyReader
from access.policy.settling import PolicySettling
from access.policy.tables import Table
from edge.clients.connect import Connecting
from edge.cluster_policy import ClusterPolicy
from edge.login.credential_lookups import UserQuestions
from edge.login.logins import ClientLogins
from router.policy.policy_proposals import PolicyProposals
from router.policy.policy_service import PolicyService
from router.policy.pruning import PruneSchedule
from router.policy.verb_waits import SettlementWaits
from tests.access.policy import test_pages as _P
from tests.access.policy import test_settling as _S
from tests.access.policy import test_tables as _T
from tests.edge import test_cluster_policy as _E
from tests.mutants.access_rules import _said
from tests.mutants.seeded import SeededBug, _wrapped
from tests.router.policy import test_policy_service as _D
from tests.router.policy import test_pruning as _R
from tests.simulation import test_policy as _W
from tests.simulation.simulation import Options, run_seed

__all__ = ["POLICY_RULES"]

SEED, SECONDS = 2_002, 2.0


def _seed() -> None:
    """P9 by one whole cluster."""
    result = run_seed(SEED, Options(seconds=SECONDS, policy=True))
    assert not result.failures, result.failures[0]


def _acknowledged_at_receipt(original: Any, self: Any, step: Any) -> None:
    original(self, step)
    lease = self._node.lease
    lease.follow_policy(self._node.now, self._follower.received, self._follower.received)


def _nobody_is_judged(original: Any, self: Any, client: Any, judging: Any) -> bool:
    del original, self, client, judging
    return False


def _no_fence_time(original: Any, self: Any, now: float, incarnation: Any, *, proved: bool) -> None:
    del proved
    original(self, now, incarnation, proved=True)


def _no_time_of_before(original: Any, self: Any, now: float, live: Any, fence_max_s: float) -> None:
    del fence_max_s
    original(self, now, live, 0.0)


def _deaths_of_the_leader(original: Any, self: Any, now: float, delta: Any, before: Any, epoch: int) -> None:
    original(self, now, delta, before if self.leads else {}, epoch)


def _as_of_now(original: Any, self: Any, message: Any) -> None:
    original(self, msgspec.structs.replace(message, epoch=self._view().epoch))


def _any_view(original: Any, self: Any, page: Any, epoch: int) -> Any:
    del epoch
    return original(self, page, 0)


def _kept(original: Any, self: Any, client: Any, answer: Any, began: Any) -> None:
    del original, began
    self._opened(client, answer)


def _refuses_early(original: Any, self: Any, command: Any, asker: Any = None, *, is_current: bool = True) -> Any:
    del is_current
    return original(self, command, asker)


def _repeats_do_not_wait(original: Any, self: Any, now: float, asker: Any, outcome: Any) -> None:
    if outcome.order is None or outcome.order.refusal:
        original(self, now, asker, outcome)
    else:
        waits, self.waits = self.waits, _settled_at_once(self.waits)
        original(self, now, asker, outcome)
        self.waits = waits


def _gone_at_its_end(original: Any, self: Any, utc: Any, late_s: float) -> None:
    del late_s
    original(self, utc, 0.0)


def _whatever_ends(original: Any, self: Any, by_utc: float, count: int) -> Any:
    del by_utc
    return original(self, 1e13, count)


def _settled_at_once(waits: SettlementWaits) -> Any:
    class AtOnce:
        def wait(self, now: float, _epoch: int, asker: Any) -> None:
            waits.wait(now, 0, asker)

    return AtOnce()


POLICY_RULES: tuple[SeededBug, ...] = (
    SeededBug(
        "a step is acknowledged when it comes",
        "edge/cluster_policy.py ClusterPolicy._stepped",
        _wrapped(ClusterPolicy, "_stepped", _acknowledged_at_receipt),
        partial(_E.test_policy_step_ends_affected_clients, c.SetDisabled("ann", True)),
        "test_policy_step_ends_affected_clients",
    ),
    SeededBug(
        "a pass closes no connection",
        "edge/cluster_policy.py ClusterPolicy._apply_or_reject",
        _wrapped(ClusterPolicy, "_apply_or_reject", _nobody_is_judged),
        _seed,
        "a seed of --policy",
        30.0,
    ),
    SeededBug(
        "a login outlives the policy epoch of its decision",
        "edge/login/logins.py ClientLogins.permissions_removed",
        lambda patch: patch.setattr(ClientLogins, "permissions_removed", lambda _: None),
        partial(_E.test_session_of_repeated_login_is_opened_again, expiry_s=60),
        "test_session_of_repeated_login_is_opened_again",
    ),
    SeededBug(
        "a login is answered by users of an older epoch",
        "edge/login/credential_lookups.py UserQuestions.handle",
        _wrapped(UserQuestions, "handle", _as_of_now),
        _E.test_response_of_older_policy_is_ignored,
        "test_response_of_older_policy_is_ignored",
    ),
    SeededBug(
        "a silent death counts at once",
        "access/policy/settling.py PolicySettling.ended",
        _wrapped(PolicySettling, "ended", _no_fence_time),
        _W.test_c2_dead_edge_still_serves,
        "tests/simulation/test_policy.py, C2",
        10.0,
    ),
    SeededBug(
        "the next incarnation answers for the last",
        "access/policy/settling.py PolicySettling.ended",
        _wrapped(PolicySettling, "ended", _no_fence_time),
        _S.test_c4_the_next_incarnation_does_not_answer_for_the_last,
        "test_c4_the_next_incarnation_does_not_answer_for_the_last",
    ),
    SeededBug(
        "a restarted leader treats earlier deaths as old",
        "access/policy/settling.py PolicySettling.begin",
        _wrapped(PolicySettling, "begin", _no_time_of_before),
        partial(_W.test_c5_restarted_leader_knows_no_earlier_end, "snapshot"),
        "tests/simulation/test_policy.py, C5",
        10.0,
    ),
    SeededBug(
        "a router notes no death before it leads",
        "router/policy/verb_waits.py SettlementWaits.apply_step",
        _wrapped(SettlementWaits, "apply_step", _deaths_of_the_leader),
        _W.test_c5_leader_changes_during_the_fence_time,
        "tests/simulation/test_policy.py, C5",
        10.0,
    ),
    SeededBug(
        "a repeated order does not wait again",
        "router/policy/policy_service.py PolicyDesk._answer",
        _wrapped(PolicyService, "_answer", _repeats_do_not_wait),
        _D.test_unsettled_command_names_awaited_nodes_and_can_be_repeated,
        "test_unsettled_command_names_awaited_nodes_and_can_be_repeated",
    ),
    SeededBug(
        "a view of a lower epoch is taken",
        "access/policy/pages.py PolicyReader.take",
        _wrapped(PolicyReader, "take", _any_view),
        _said(_P.test_a_view_of_a_lower_epoch_is_refused),
        "test_a_view_of_a_lower_epoch_is_refused",
    ),
    SeededBug(
        "a session of a login that waited twice is kept",
        "edge/clients/connect.py Connecting._recheck_finished",
        _wrapped(Connecting, "_recheck_finished", _kept),
        partial(_E.test_session_of_repeated_login_is_opened_again, 60),
        "test_session_of_repeated_login_is_opened_again",
    ),
    SeededBug(
        "a new leader refuses by its partially applied log",
        "router/policy/policy_proposals.py PolicyProposals.propose",
        _wrapped(PolicyProposals, "propose", _refuses_early),
        _D.test_new_leader_does_not_refuse_before_it_applied_the_whole_log,
        "test_new_leader_does_not_refuse_before_it_applied_the_whole_log",
    ),
    SeededBug(
        "a revocation expires by the first clock",
        "router/policy/pruning.py PruneSchedule.due",
        _wrapped(PruneSchedule, "__init__", _gone_at_its_end),
        _R.test_record_is_removed_an_hour_after_its_end,
        "test_record_is_removed_an_hour_after_its_end",
    ),
    SeededBug(
        "unexpired revocations are pruned with expired ones",
        "access/policy/tables.py Table.ended",
        _wrapped(Table, "ended", _whatever_ends),
        _T.test_a_record_whose_end_was_moved_or_that_was_taken_back_is_not_pruned_by_the_former_one,
        "test_a_record_whose_end_was_moved_or_that_was_taken_back_is_not_pruned_by_the_former_one",
    ),
)
