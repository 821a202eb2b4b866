"""All resources that a storage node serves to operators."""

from collections.abc import Callable, Mapping

from storage.hosting.placements import Placements
from storage.queries.copies import copy_sources
from storage.queries.query_rows import QueryRows
from storage.queries.queues import queue_sources
from storage.queries.sessions import session_sources
from storage.queries.topics import topic_sources
from wire.messages.cluster_map import ClusterMap
from wire.queries.journal import journal_source
from wire.queries.source import RowSource

__all__ = ["storage_sources"]


def storage_sources(
    node: str,
    placements: Placements,
    cluster_map: Callable[[], ClusterMap],
    served_ms: Callable[[int], int],
    counts: Callable[[], Mapping[str, int]],
) -> dict[str, RowSource]:
    """Return the row sources of a storage node's query server."""
    shown = QueryRows(node, placements.hosted, cluster_map, served_ms, lambda: placements.journal.utc_ms())
    return {
        **session_sources(shown),
        **queue_sources(shown),
        **topic_sources(shown),
        **copy_sources(shown, placements, counts),
        "journal": journal_source(placements.journal, node, cluster_map),
    }
