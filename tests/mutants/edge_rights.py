"""Permission rules at an edge, each removed, and the test that detects it (those of ``tests/edge/rights``)."""

from functools import partial
from typing import Any

from access.limits.bans import Ban
from access.rules.rights import ConnectionRights
from access.rules.rules import AccessRule
from edge.disconnected_filters import DisconnectedFilterChecks
from edge.login import logins
from edge.publishing import publishing
from edge.rights import sweep as sweeps
from edge.rights.absent import AbsentClientMessage, AbsentUserChecks
from edge.rights.client_rights import ClientRights
from edge.rights.sources import RuleBook
from edge.rights.sweep import ReauthorizationPass
from edge.session_filter_reads import SessionFilterReads
from edge.subscriptions.ephemeral_sessions import EphemeralSubscriptions
from tests.edge import test_disconnected_filters as _A
from tests.edge.rights import test_absent as _W
from tests.edge.rights import test_held_filters as _H
from tests.edge.rights import test_renewal as _N
from tests.edge.rights import test_resumed_filters as _F
from tests.edge.rights import test_rules_of_clients as _R
from tests.edge.rights import test_shared_parts as _P
from tests.edge.rights import test_sweep as _S
from tests.mutants.seeded import SeededBug

__all__ = ["EDGE_RIGHTS"]


def _forgets(sweep: Any, clients: int, filters: int) -> tuple[int, int]:
    sweep._rights.resumed.clear()
    return clients, filters


def _all_at_once(look: Any, _: int) -> list[str]:
    taken: list[str] = _take(look, 1 << 30)
    return taken


def _costs_nothing(patch: Any) -> None:
    patch.setattr(logins, "RENEWAL_NS", 0)
    patch.setattr(logins, "RENEWED_FILTER_NS", 0)


_take = sweeps._FilterCheck.take


def _by_an_older_view(self: AbsentUserChecks, away: Any, then: Any) -> bool:
    names = [held.topic_filter for held in away.filters]
    return _judge_filters(self, away, lambda refused: then(names if refused is None else refused))


_judge_filters, _follow_map = AbsentUserChecks.check_filters, DisconnectedFilterChecks._follow_map


def _left_from_nowhere(owner: str, made: int, topic: str, qos: int, *_: str) -> AbsentClientMessage:
    return AbsentClientMessage(owner, made, topic, qos)


def _looks_at_its_new_ones(self: DisconnectedFilterChecks) -> None:
    self._edges = frozenset()
    _follow_map(self)


EDGE_RIGHTS: tuple[SeededBug, ...] = (
    SeededBug(
        "an absent client's filters are authorized by an older policy than their own",
        "edge/rights/absent.py AbsentUserChecks.check_filters",
        lambda patch: patch.setattr(AbsentUserChecks, "check_filters", _by_an_older_view),
        _A.test_newer_policy_is_not_judged_by_an_older_view,
        "test_newer_policy_is_not_judged_by_an_older_view",
    ),
    SeededBug(
        "a client that leaves before its filters are authorized is forgotten",
        "edge/disconnected_filters.py DisconnectedFilterChecks.left",
        lambda patch: patch.setattr(DisconnectedFilterChecks, "left", lambda *_: None),
        partial(_A.test_disconnect_before_check_is_checked_by_its_edge, "told", 1),
        "test_disconnect_before_check_is_checked_by_its_edge",
    ),
    SeededBug(
        "the sessions of an ended edge are not checked",
        "edge/disconnected_filters.py DisconnectedFilterChecks._follow_map",
        lambda patch: patch.setattr(DisconnectedFilterChecks, "_follow_map", _looks_at_its_new_ones),
        _A.test_new_edge_of_a_partition_checks_it_whole,
        "test_new_edge_of_a_partition_checks_it_whole",
    ),
    SeededBug(
        "a partition that hangs holds all places of large sessions",
        "edge/session_filter_reads.py HeldFilters._answers",
        lambda patch: patch.setattr(SessionFilterReads, "_answers", SessionFilterReads._has_primary),
        _H.test_unresponsive_partition_does_not_delay_others,
        "test_unresponsive_partition_does_not_delay_others",
    ),
    SeededBug(
        "a member with part of a group's filter gets denied topics",
        "edge/subscriptions/ephemeral_sessions.py EphemeralSubscriptions._member",
        lambda patch: patch.setattr(
            EphemeralSubscriptions, "_member", lambda _, group, turn, *__: group.member_at(turn)
        ),
        partial(_P.test_copies_go_to_authorized_members, 1),
        "test_copies_go_to_authorized_members",
    ),
    SeededBug(
        "a will is authorized without its client's address",
        "edge/publishing/publishing.py Publishing.fire_will",
        lambda patch: patch.setattr(publishing, "AbsentClientMessage", _left_from_nowhere),
        partial(
            _W.test_will_is_discarded_by_ban_of_its_address_or_certificate,
            Ban("certificate", "ab" * 32),
            _W.PLACE,
            False,
            "ann",
        ),
        "test_will_is_discarded_by_ban_of_its_address_or_certificate",
    ),
    SeededBug(
        "an absent client's filters are authorized without the address of a rule",
        "access/rules/rules.py Rule.asks_connection",
        lambda patch: patch.setattr(AccessRule, "asks_connection", False),
        _A.test_rules_with_unknown_conditions_remove_nothing,
        "test_rules_with_unknown_conditions_remove_nothing",
    ),
    SeededBug(
        "bits of a class outlive an epoch",
        "edge/rights/client_rights.py ClientRights._follow",
        lambda patch: patch.setattr(ClientRights, "_follow", lambda *_: None),
        _R.test_new_rules_apply_to_the_next_message,
        "test_new_rules_apply_to_the_next_message",
    ),
    SeededBug(
        "a client keeps the class of its former names",
        "access/rules/rights.py ConnectionRights.is_current",
        lambda patch: patch.setattr(ConnectionRights, "is_current", True),
        partial(_S.test_added_acl_section_applies),
        "test_added_acl_section_applies",
    ),
    SeededBug(
        "a sweep takes no filter",
        "edge/rights/sweep.py Sweep._refused",
        lambda patch: patch.setattr(ReauthorizationPass, "_refused", lambda *_: []),
        partial(_S.test_filters_without_grant_are_removed, durable=False),
        "test_filters_without_grant_are_removed",
    ),
    SeededBug(
        "a client that reauthenticates without end is read without end",
        "edge/login/logins.py RENEWAL_NS",
        _costs_nothing,
        _N.test_reauthentication_is_rate_limited,
        "test_reauthentication_is_rate_limited",
    ),
    SeededBug(
        "all filters of one client are authorized in one iteration",
        "edge/rights/sweep.py _Look.take",
        lambda patch: patch.setattr(sweeps._FilterCheck, "take", _all_at_once),
        _N.test_many_filters_are_checked_over_several_iterations,
        "test_many_filters_are_checked_over_several_iterations",
    ),
    SeededBug(
        "an unknown listener authorizes no client",
        "edge/rights/sources.py RuleBook.of",
        lambda patch: patch.setattr(RuleBook, "of", lambda self, name: self.by_listener.get(name)),
        _S.test_unknown_listener_gives_no_rules,
        "test_unknown_listener_gives_no_rules",
    ),
    SeededBug(
        "filters of earlier connections have no owner",
        "edge/rights/sweep.py ReauthorizationPass._check_resumed",
        lambda patch: patch.setattr(ReauthorizationPass, "_check_resumed", _forgets),
        _F.test_resume_removes_filters_without_permission,
        "test_resume_removes_filters_without_permission",
    ),
)
