"""The journal of an edge: connects drops of the loop to it; the other parts write their own entries."""

from collections.abc import Callable

from edge.clients.client import Client
from edge.loop.broker_loop import BrokerLoop
from edge.loop.handler import DropSink
from edge.node.node import EdgeNode
from edge.rights.client_rights import ClientRights
from wire.queries.journal import Journal, journal_source
from wire.queries.source import RowSource

__all__ = ["join_journal"]


class _Drops:
    """Journals drops of the loop (``edge/loop/handler.py``); unauthorized publishers also go to the audit."""

    def __init__(self, journal: Journal, rights: ClientRights) -> None:
        self._journal = journal
        self._rights = rights

    def dropped(self, context: object, reason: str, topic: bytes, kind: int, a: int, b: int) -> None:
        """Journal one drop."""
        client_id = context.client_id if isinstance(context, Client) else ""
        origin = (kind, a, b) if a else (0, 0, 0)  # an incarnation, a session: never 0
        self._journal.note("drop", reason, client_id, topic.decode("utf-8", "replace"), origin)

    def denied(self, context: object, topic: bytes) -> None:
        """Audit a refused PUBLISH."""
        if isinstance(context, Client):
            self._rights.refused(context, "publish", topic.decode("utf-8", "replace"))


def join_journal(
    node: EdgeNode, hot: BrokerLoop, rights: ClientRights, utc_ms: Callable[[], int]
) -> dict[str, RowSource]:
    """Connect the loop to the journal of its node, and return the journal's row source."""
    journal = node.journal
    journal.utc_ms = utc_ms
    journal.outside = lambda: hot.notes_left_out
    drops: DropSink = _Drops(journal, rights)
    hot.journal = drops
    return {"journal": journal_source(journal, node.name, lambda: node.map)}
