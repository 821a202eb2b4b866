"""Permission rules at storage, each removed, and the test that detects it (those of ``tests/storage/rights``)."""

from functools import partial
from typing import Any

from storage.messages.outbound import InFlightEntries
from storage.rights import owners
from storage.rights.owners import Owner
from storage.sessions import ownership, subscriptions
from storage.sessions.disconnected import DisconnectedSessions
from storage.sessions.ownership import Owners
from storage.sessions.subscriptions import Subscriptions
from storage.state.durable_sessions import DurableSession
from tests.mutants.seeded import SeededBug
from tests.storage import test_bounds_of_users as _B
from tests.storage import test_disconnected_sessions as _A
from tests.storage.rights import test_abandoned_copies as _G
from tests.storage.rights import test_filters as _F
from tests.storage.rights import test_owners as _O

__all__ = ["STORAGE_RIGHTS"]


def _rows_forget(cls: type[DurableSession], number: int, row: Any) -> DurableSession:
    del cls
    session = _from_row(number, row)
    session.owner, session.owner_made = "", 0
    return session


def _restored_in_full(self: Subscriptions, session: DurableSession, subscription: Any, *, partial: bool) -> None:
    del partial
    _restore(self, session, subscription, partial=False)


def _the_last_rules_count(session: DurableSession, request: Any, *_: int) -> None:
    session.judged = request.judged


def _stays_a_member(self: Subscriptions, *_: object) -> None:
    del self


def _repeats_go_on(self: InFlightEntries, session: DurableSession, session_seq: int, flight: Any) -> None:
    flight.repeated = False
    _drop_refused(self, session, session_seq, flight)


def _finish_without_a_mark(self: DurableSession) -> None:
    _finish(self)
    self.recheck_below = 0


def _of_any_connection(self: DisconnectedSessions, request: Any, edge: str) -> None:
    session = self._partition.sessions.get(request.away)
    request.owner_epoch = session.owner_epoch if session is not None else 0
    _revoke_away(self, request, edge)


def _rows_without_bounds(cls: type[DurableSession], number: int, row: Any) -> DurableSession:
    del cls
    session = _from_row(number, row)
    session.queue_bounds = None
    return session


_revoke_away = DisconnectedSessions.revoke
_finish = DurableSession.finish_restore
_drop_refused = InFlightEntries._drop_refused
_restore = Subscriptions.restore
_from_row = DurableSession.from_row
_ROWS = "storage/state/durable_sessions.py DurableSession.from_row"

STORAGE_RIGHTS: tuple[SeededBug, ...] = (
    SeededBug(
        "the owner is not compared at a takeover",
        "storage/sessions/ownership.py Owners._is_anothers",
        lambda patch: patch.setattr(Owners, "_is_anothers", lambda *_: False),
        partial(_O.test_live_connection_refuses_takeover_by_another_user, _O.BOB, 3600, crash=False),
        "test_live_connection_refuses_takeover_by_another_user",
    ),
    SeededBug(
        "a name that is given again is the same user",
        "storage/rights/owners.py Owner.admits",
        lambda patch: patch.setattr(Owner, "admits", lambda self, other: not self.user or self.user == other.user),
        partial(_O.test_stored_session_refuses_other_users, _O.ANOTHER_ANN, 3600, clean_start=False, crash=False),
        "test_stored_session_refuses_other_users",
    ),
    SeededBug(
        "the owner of a session dies with its primary",
        _ROWS,
        lambda patch: patch.setattr(DurableSession, "from_row", classmethod(_rows_forget)),
        partial(_O.test_stored_session_refuses_other_users, _O.BOB, 3600, clean_start=True, crash=True),
        "test_stored_session_refuses_other_users",
    ),
    SeededBug(
        "claims name no user",
        "storage/rights/owners.py owner_by_claim",
        lambda patch: patch.setattr(ownership, "owner_by_claim", lambda known, _: known),
        partial(_O.test_ephemeral_client_without_row_is_owned_by_its_claim, will=False),
        "test_ephemeral_client_without_row_is_owned_by_its_claim",
    ),
    SeededBug(
        "a claim goes before the rows",
        "storage/rights/owners.py owner_by_claim",
        lambda patch: patch.setattr(ownership, "owner_by_claim", lambda _, claim: owners.owner_of(claim)),
        partial(_O.test_claim_without_user_keeps_the_known_owner, 0),
        "test_claim_without_user_keeps_the_known_owner",
    ),
    SeededBug(
        "filters count as granted by the rules of the last one",
        "storage/rights/filters.py note_granted",
        lambda patch: patch.setattr(subscriptions, "note_granted", _the_last_rules_count),
        _F.test_subscribe_does_not_confirm_reported_filters,
        "test_subscribe_does_not_confirm_reported_filters",
    ),
    SeededBug(
        "a new primary takes a part of a filter for all of it",
        "storage/sessions/subscriptions.py Subscriptions.restore",
        lambda patch: patch.setattr(Subscriptions, "restore", _restored_in_full),
        partial(_F.test_partially_granted_filter_is_reported_at_each_connect, crash=True),
        "test_partially_granted_filter_is_reported_at_each_connect",
    ),
    SeededBug(
        "a member that was refused a copy stays in its group, which picks it again",
        "storage/sessions/subscriptions.py Subscriptions.take_group",
        lambda patch: patch.setattr(Subscriptions, "take_group", _stays_a_member),
        partial(_G.test_copy_refused_by_the_edge_is_redispatched, is_member=True, qos=1),
        "test_copy_refused_by_the_edge_is_redispatched",
    ),
    SeededBug(
        "a repeat of QoS 2 that was refused goes to another member",
        "storage/messages/outbound.py Outbound._drop_refused",
        lambda patch: patch.setattr(InFlightEntries, "_drop_refused", _repeats_go_on),
        _G.test_refused_qos_2_repeat_is_not_redispatched,
        "test_refused_qos_2_repeat_is_not_redispatched",
    ),
    SeededBug(
        "a client that connected later loses its granted filters",
        "storage/sessions/disconnected.py AwaySessions.revoke",
        lambda patch: patch.setattr(DisconnectedSessions, "revoke", _of_any_connection),
        _A.test_client_that_reconnected_keeps_its_filters,
        "test_client_that_reconnected_keeps_its_filters",
    ),
    SeededBug(
        "the bound of a queue dies with its primary",
        _ROWS,
        lambda patch: patch.setattr(DurableSession, "from_row", classmethod(_rows_without_bounds)),
        partial(_B.test_connect_bounds_the_queue_of_its_session, "drop_oldest", {"queue_messages_max": 2}),
        "test_connect_bounds_the_queue_of_its_session",
    ),
    SeededBug(
        "a recheck mark is lost at promotion",
        "storage/state/durable_sessions.py DurableSession.finish_restore",
        lambda patch: patch.setattr(DurableSession, "finish_restore", _finish_without_a_mark),
        _F.test_b3_recheck_mark_survives_failover,
        "test_b3_recheck_mark_survives_failover",
    ),
)
