"""Rules of the operators' interface, each removed, and the test that detects it."""

from functools import partial
from typing import Any

import trio

from admin.http import app
from admin.scatter_gather import ResultPage, ScatterGather
from conf import drop_reasons
from tests.admin import test_gather as _G
from tests.admin.http import test_roles as _R
from tests.edge import test_event_families as _F
from tests.edge import test_traces as _T
from tests.mutants.seeded import SeededBug
from tests.storage import test_query_columns as _P
from tests.wire import test_journal as _J
from tests.wire import test_query_server as _L
from tests.wire import test_traces as _W
from wire.queries import query_server, tracer
from wire.queries.journal import Journal
from wire.queries.source import RowScan
from wire.queries.tracer import Tracer

__all__ = ["OPERATORS"]

MADE, NOTE = ScatterGather._made, Journal.note


def _name_nobody(self: ScatterGather, *arguments: Any, **options: Any) -> ResultPage:
    return MADE(self, *arguments, **options)._replace(partial=())


def _lose_the_oldest(self: Journal, *arguments: Any, **options: Any) -> None:
    NOTE(self, *arguments, **options)
    if len(self.entries) > 2:
        self.entries.popleft()


def _let_everybody_in(find: Any, _: object) -> Any:
    async def authorize(connection: Any, __: object) -> None:
        connection.state.caller = await find(connection)

    return authorize


OPERATORS: tuple[SeededBug, ...] = (
    SeededBug(
        "a drop has no reason",
        "conf/drop_reasons.py REASON_OF",
        lambda patch: patch.delitem(drop_reasons.REASON_OF, "dropped_denied"),
        _F.test_drops_of_loop_and_core_share_a_family,
        "test_drops_of_loop_and_core_share_a_family",
    ),
    SeededBug(
        "a trace asks for no role",
        "wire/queries/tracer.py Tracer.asked",
        lambda patch: patch.setattr(tracer, "lower_role", lambda *_: "operator"),
        _W.test_tracer_requires_the_operator_role,
        "test_tracer_requires_the_operator_role",
    ),
    SeededBug(
        "the HTTP service asks for no role",
        "admin/http/app.py _guard",
        lambda patch: patch.setattr(app, "_guard", _let_everybody_in),
        lambda: trio.run(_R.test_a_verb_wants_its_role, "viewer"),
        "test_a_verb_wants_its_role",
    ),
    SeededBug(
        "the certificate's role counts, whatever the question's is",
        "wire/queries/query_server.py QueryServer.ask",
        lambda patch: patch.setattr(query_server, "lower_role", lambda role, _: role),
        _L.test_query_role_is_the_lower_of_certificate_and_query,
        "test_query_role_is_the_lower_of_certificate_and_query",
    ),
    SeededBug(
        "a payload is shown without a request",
        "wire/queries/query_server.py _shown",
        lambda patch: patch.setattr(query_server, "_shown", lambda look, _, columns: tuple(look.columns or columns)),
        partial(_P.test_payload_is_shown_only_to_authorized_operators, "retained", {}, [], "viewer", None, ""),
        "test_payload_is_shown_only_to_authorized_operators",
    ),
    SeededBug(
        "a payload asks for no role",
        "wire/queries/source.py Ask.may_read_payloads",
        lambda patch: patch.setattr(RowScan, "may_read_payloads", lambda _: True),
        partial(
            _P.test_payload_is_shown_only_to_authorized_operators,
            *("queue", {"client_id": "alice", "payload": "head"}, [], "viewer", None, "want the role operator"),
        ),
        "test_payload_is_shown_only_to_authorized_operators",
    ),
    SeededBug(
        "a node that did not answer is not named",
        "admin/scatter_gather.py Gather._made",
        lambda patch: patch.setattr(ScatterGather, "_made", _name_nobody),
        _G.test_walk_silent_node_is_named_after_timeout,
        "test_walk_silent_node_is_named_after_timeout",
    ),
    SeededBug(
        "an entry of the journal is lost",
        "wire/queries/journal.py Journal.note",
        lambda patch: patch.setattr(Journal, "note", _lose_the_oldest),
        _J.test_journal_burst_keeps_older_entries,
        "test_journal_burst_keeps_older_entries",
    ),
    SeededBug(
        "no route is marked",
        "wire/queries/tracer.py TraceDesk.wants_topic",
        lambda patch: patch.setattr(Tracer, "wants_topic", lambda *_: False),
        _T.test_topic_with_cached_route_is_marked,
        "test_topic_with_cached_route_is_marked",
    ),
    SeededBug(
        "every route is marked",
        "wire/queries/tracer.py TraceDesk.wants_topic",
        lambda patch: patch.setattr(Tracer, "wants_topic", lambda *_: True),
        _T.test_topic_with_cached_route_is_marked,
        "test_topic_with_cached_route_is_marked",
    ),
)
