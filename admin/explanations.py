"""Explanations of a running cluster: run the queries that each needs and pass the rows to ``admin/explain``."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from admin.explain.client import explain_client
from admin.explain.explanation import Explanation
from admin.explain.ledgers import LedgerRecord, NoLedger, read_ledgers
from admin.explain.message import NO_TRACE, DeliveryEnd, Evidence, explain_message, explain_unknown_message
from admin.explain.topic import explain_topic
from admin.queries import PLACE_ROWS, Cluster, ListQuery, TopicView, client, place, subscriptions, topic, walk
from admin.scatter_gather import MissingRows
from conf.errors import ExitCode, UserError
from wire.messages.client_rows import ClientDetail, InFlightRow, QueuedMessageRow
from wire.messages.node_rows import JournalRow, TraceEventRow
from wire.messages.topic_rows import MatchRow

__all__ = ["NOTED_MAX", "by_origin", "by_packet", "by_sequence", "check_topic", "client_explained", "topic_explained"]

NOTED_MAX = 256  # characters of a client ID that journals and traces store
JOURNAL_ROWS = 200  # the newest entries about one client or one message
NO_KIND = " shows no "  # reply of a node whose release lacks such rows
ACKNOWLEDGED_MAX = 16  # clients whose current connection is queried
SESSIONS_MAX = 64  # sessions whose queues are searched for one message
LONGEST_S = 1.0  # to find the longest queues: a storage node may have a million sessions
CHECKED_MAX = 64  # connected stored sessions whose edge authorizes the message
SILENT_MAX = 3  # edges that do not answer within 1 s
HEAD_BYTES = 8  # of a PUBLISH, besides topic and payload


async def client_explained(cluster: Cluster, client_id: str, now_ms: int, name: str = "") -> Explanation:
    """Explain why a client receives no messages, or none of a topic."""
    if name:
        check_topic(name)
    view = await client(cluster, client_id, {"topic": name} if name else {})
    held, lacked = await subscriptions(cluster, view)
    matched = []
    node = view.primary if view.session is not None and view.session.durable else view.edge
    if name and node:
        rows, more = await place(cluster, node, "matches", {"topic": name, "client_id": client_id}, PLACE_ROWS)
        matched = [row for row in rows if row.client_id == client_id]
        for row in matched:
            row.why = row.why or _edge_rejection(view.connection, row, 0)
        lacked += more
    noted = client_id[:NOTED_MAX]
    journal, silent = await _journal(cluster, {"client_id": noted})
    return explain_client(
        view,
        now_ms,
        held,
        topic=name,
        matches=matched,
        journal=[entry for _, entry in journal if entry.client_id == noted],
        partial=lacked + silent,
        copies=() if view.primary else cluster.map.partitions[view.partition].in_sync,
    )


def _edge_rejection(connection: ClientDetail | None, match: MatchRow, size: int) -> str:
    """Return why the edge of a stored session rejects a message; storage does not have this data."""
    if connection is None:
        return ""
    if connection.may_receive is False:
        return "access"
    most = connection.maximum_packet_size
    if size and most is not None and size > most:
        match.detail = f"some {size} of at most {most} bytes"
        return "size"
    return ""


async def topic_explained(
    cluster: Cluster, name: str, *, publisher: str = "", qos: int = 1, size: int = 0, retain: bool = False
) -> tuple[TopicView, Explanation]:
    """Explain which clients receive a topic."""
    check_topic(name)
    about = {"qos": str(qos), "near": "1"}
    about |= ({"from": publisher} if publisher else {}) | ({"bytes": str(size)} if size else {})
    about |= {"retain": "1"} if retain else {}
    view = await _check_at_edges(cluster, await topic(cluster, name, about), qos, size)
    return view, explain_topic(view, cluster.map, publisher=publisher, qos=qos)


async def _check_at_edges(cluster: Cluster, view: TopicView, qos: int, size: int) -> TopicView:
    """Query the edges of connected stored sessions for access and size limits, which storage does not have."""
    matches = [
        row for _, row in view.matches if row.durable and row.online and row.node and row.client_id and not row.why
    ]
    lacked: tuple[MissingRows, ...] = ()
    for row in matches[:CHECKED_MAX]:
        edge = row.node or ""
        if any(item.node == edge for item in lacked):
            continue  # it timed out before, and would take 1 s each time
        if len(lacked) >= SILENT_MAX:
            lacked += (MissingRows("rights", f"{SILENT_MAX} edges did not answer, the others were not queried"),)
            break
        where = {"client_id": row.client_id or "", "topic": view.topic, "qos": str(min(qos, row.qos or 0))}
        found, more = await place(cluster, edge, "client", where, 1)
        packet = size + len(view.topic.encode()) + HEAD_BYTES if size else 0
        row.why = _edge_rejection(found[0] if found else None, row, packet)
        lacked += more
    if len(matches) > CHECKED_MAX:
        lacked += (
            MissingRows("rights", f"only {CHECKED_MAX} of {len(matches)} connected stored sessions were checked"),
        )
    return view._replace(partial=view.partial + lacked)


def check_topic(name: str) -> None:
    """Validate a topic name.

    Raises:
        UserError: The name is empty, too long or has wildcards.
    """
    if not name:
        raise UserError("the topic name must not be empty", ExitCode.USAGE)
    if "+" in name or "#" in name or "\0" in name:
        raise UserError(f"{name[:100]!r} is not a topic name: it must not contain + or #", ExitCode.USAGE)
    if len(name.encode("utf-8", "replace")) > 65_535:
        raise UserError(f"a topic name of {len(name)} characters: at most 65535 bytes", ExitCode.USAGE)


async def _journal(
    cluster: Cluster, where: Mapping[str, str]
) -> tuple[tuple[tuple[str, Any], ...], tuple[MissingRows, ...]]:
    found = await walk(cluster, "journal", ListQuery(where, limit=JOURNAL_ROWS, best="at_ms"))
    return found.rows, _kinds_lacked("journal", found.partial)


def _kinds_lacked(what: str, partial: tuple[MissingRows, ...]) -> tuple[MissingRows, ...]:
    """Return the nodes that did not answer; merge nodes without such rows into one entry."""
    without = [missing.node for missing in partial if NO_KIND in missing.why]
    rest = tuple(missing for missing in partial if NO_KIND not in missing.why)
    return (*rest, MissingRows(what, f"none at {', '.join(without)}")) if without else rest


async def by_origin(cluster: Cluster, origin: str, name: str = "", ledger: Path | None = None) -> Explanation:
    """Explain a message's deliveries by its origin.

    Args:
        cluster: Cluster to query.
        origin: As queues, journals and traces print it.
        name: Its topic, for the queues of matching sessions. "": the topic is taken from journals and traces; if they
            lack it, the longest queues are searched.
        ledger: Folder of acknowledgement ledgers on this host; None: they are not read.

    Raises:
        UserError: A ledger cannot be read.
    """
    recorded = _recorded(ledger, origin)
    journal, lacked = await _journal(cluster, {"origin": origin})
    events, silent = await _events(cluster, origin)
    kept = await walk(cluster, "retained", ListQuery({"origin": origin}, limit=1))
    lacked = tuple(dict.fromkeys((*lacked, *silent, *kept.partial)))
    known = [entry.topic for _, entry in journal] + [event.topic for _, event in events]
    name = name or next((item for item in known if item), "")
    queued: list[tuple[str, str, QueuedMessageRow, int]] = []
    had = ["journals, traces and retained messages of the nodes that answered"]
    if name:
        view, now = await topic_explained(cluster, name)
        sessions = [match.client_id for _, match in view.matches if match.durable and match.client_id]
        for client_id in sessions[:SESSIONS_MAX]:
            found, more = await _in_queue(cluster, client_id, origin)
            queued += found
            lacked += more
        lacked += view.partial
        had.append(f"queues of {min(len(sessions), SESSIONS_MAX)} of {len(sessions)} sessions that match {name!r}")
    else:
        longest, others = await _longest_queues(cluster)
        for client_id in longest:
            found, more = await _in_queue(cluster, client_id, origin)
            queued += found
            lacked += more
        had += [f"the longest queues, of {len(longest)} sessions"] if longest else []
        lacked += others if not queued else ()
    finished = await _finished(cluster, events)
    had += [recorded.had] if recorded.had else []
    lacked = tuple(dict.fromkeys((*lacked, *recorded.lacked)))
    evidence = Evidence(journal, events, queued, (), kept.rows, finished, recorded.steps, had, lacked)
    story = explain_message(origin, evidence)
    if name and story.cause is not None and story.cause.what == NO_TRACE:
        return explain_unknown_message(story, view, now)
    return story


def _recorded(folder: Path | None, origin: str) -> LedgerRecord:
    if folder is None:
        return LedgerRecord(
            [], "", (MissingRows("ledgers", "not read: `msg explain --ledger FOLDER` reads the ledgers of a host"),)
        )
    try:
        return read_ledgers(folder, origin)
    except OSError as error:
        raise UserError(f"--ledger {folder}: {error.strerror or error}", ExitCode.USAGE) from None
    except NoLedger as error:
        raise UserError(f"--ledger {error}", ExitCode.USAGE) from None


async def _finished(cluster: Cluster, events: Sequence[tuple[str, Any]]) -> list[DeliveryEnd]:
    """Return the acknowledged deliveries of the traced events, with each client's current connection."""
    acknowledged = {event.client_id: (node, event) for node, event in events if event.stage == "acked"}
    found = []
    for client_id, (node, event) in list(acknowledged.items())[:ACKNOWLEDGED_MAX]:
        if client_id:
            connection = (await client(cluster, client_id)).connection
            since_ms = connection.connected_at_ms if connection is not None else None
            found.append(DeliveryEnd(node, client_id, event.seq, (event.at_us or 0) // 1000, since_ms))
    return found


async def _events(cluster: Cluster, origin: str) -> tuple[list[tuple[str, Any]], tuple[MissingRows, ...]]:
    """Return the events of every trace about one message."""
    traces = await walk(cluster, "traces", ListQuery(limit=PLACE_ROWS))
    events: list[tuple[str, Any]] = []
    lacked = _kinds_lacked("traces", traces.partial)
    for node, name in dict.fromkeys((node, row.trace) for node, row in traces.rows):
        where = {"trace": name or "", "origin": origin}
        found, more = await place(cluster, node, "trace", where, PLACE_ROWS)
        events += [(node, row) for row in found]
        lacked += more
    return events, lacked


async def _longest_queues(cluster: Cluster) -> tuple[list[str], tuple[MissingRows, ...]]:
    """Return the sessions with the longest queues, and the unsearched ones; nodes have one second."""
    wanted = ListQuery(limit=SESSIONS_MAX, columns=("client_id", "queued"), best="queued")
    found = await walk(cluster._replace(total_s=min(cluster.total_s, LONGEST_S)), "sessions", wanted)
    names = [row.client_id for _, row in found.rows if row.queued and row.client_id]
    if len(names) < SESSIONS_MAX and not found.partial:
        return names, ()
    return names, (
        MissingRows("queues", "other sessions were not searched, because the topic is not known: use --topic"),
    )


async def _in_queue(
    cluster: Cluster, client_id: str, origin: str
) -> tuple[list[tuple[str, str, QueuedMessageRow, int]], tuple[MissingRows, ...]]:
    partition = cluster.placement.partition_for(client_id)
    primary = cluster.map.partitions[partition].primary
    if not primary:
        return [], (MissingRows(f"partition {partition}", "no primary"),)
    rows, lacked = await place(cluster, primary, "queue", {"client_id": client_id}, PLACE_ROWS)
    found = []
    for index, row in enumerate(rows):
        if row.origin == origin:
            found.append((primary, client_id, row, index))
    return found, lacked


async def by_packet(cluster: Cluster, client_id: str, packet: int, ledger: Path | None = None) -> Explanation:
    """Explain a packet to a client, or one that the client published."""
    view = await client(cluster, client_id)
    rows: list[tuple[str, InFlightRow]] = []
    lacked = view.partial
    for node in dict.fromkeys(filter(None, (view.edge, view.primary if view.session is not None else ""))):
        found, more = await place(cluster, node, "inflight", {"client_id": client_id}, PLACE_ROWS)
        rows += [(node, row) for row in found if row.packet == packet]
        lacked += more
    origin = next((row.origin for _, row in rows if row.origin), "")
    had = [f"{', '.join(view.asked)} now"] if view.asked else []
    if not rows:
        origin, silent = await _find_traced_origin(cluster, client_id, lambda event: bool(event.packet == packet))
        had.append("traces of the nodes that answered")
        lacked += (*silent, MissingRows("journal", "journals do not record packet identifiers"), *_unread(ledger))
    own = [(node, row) for node, row in rows if row.direction == "from"]
    seq = next((row.seq for _, row in rows if row.seq is not None and row.direction == "to"), None)
    if seq is not None and not own:
        return await by_sequence(cluster, client_id, seq, ledger)
    if origin and not own:
        return await by_origin(cluster, origin, "", ledger)
    asked = f"packet {packet} of {client_id!r}"
    return explain_message(asked, Evidence(published=own, had=had, lacked=tuple(dict.fromkeys(lacked))))


async def by_sequence(cluster: Cluster, client_id: str, seq: int, ledger: Path | None = None) -> Explanation:
    """Explain one entry of a session's queue."""
    view = await client(cluster, client_id)
    rows, lacked = (
        await place(cluster, view.primary, "queue", {"client_id": client_id}, PLACE_ROWS) if view.primary else ([], ())
    )
    found = [(view.primary, client_id, row, index) for index, row in enumerate(rows) if row.seq == seq]
    origin = found[0][2].origin if found else ""
    name = found[0][2].topic or "" if found else ""
    finished: list[DeliveryEnd] = []
    drops: list[tuple[str, JournalRow]] = []
    had = [f"the queue at {view.primary} now"] if view.primary else []
    lacked = view.partial + lacked
    if not found:
        drops, silent = await _drops_of(cluster, client_id, seq)
        lacked += silent
        origin, silent = await _find_traced_origin(cluster, client_id, lambda event: bool(event.seq == seq))
        origin = next((entry.origin for _, entry in drops if entry.origin), origin)
        had.append("journals and traces of the nodes that answered")
        lacked += (*silent, *_unread(ledger))
    if not found and not drops and view.session is not None and 0 < seq <= (view.session.last_seq or 0):
        since_ms = view.connection.connected_at_ms if view.connection is not None else None
        finished = [DeliveryEnd(view.primary, client_id, seq, None, since_ms)]
    if origin:
        return await by_origin(cluster, origin, name, ledger)
    evidence = Evidence(drops, queued=found, finished=finished, had=had, lacked=tuple(dict.fromkeys(lacked)))
    return explain_message(f"entry {seq} of {client_id!r}", evidence)


async def _drops_of(
    cluster: Cluster, client_id: str, seq: int
) -> tuple[list[tuple[str, JournalRow]], tuple[MissingRows, ...]]:
    """Return the newest drop in the journals of one entry of a session's queue."""
    found, lacked = await _journal(cluster, {"client_id": client_id[:NOTED_MAX], "event": "drop"})
    entry_of = f"entry {seq}"  # storage/messages writes it alone, or with more after a comma
    drops = [(node, row) for node, row in found if (row.detail or "").partition(",")[0] == entry_of]
    return sorted(drops, key=lambda pair: -(pair[1].at_ms or 0))[:1], lacked


def _unread(ledger: Path | None) -> tuple[MissingRows, ...]:
    """Return the ledgers as a missing source: they identify a message by origin only."""
    return (
        _recorded(None, "").lacked if ledger is None else (MissingRows("ledgers", "not read: the origin is not known"),)
    )


async def _find_traced_origin(
    cluster: Cluster, client_id: str, matches: Callable[[TraceEventRow], bool]
) -> tuple[str, tuple[MissingRows, ...]]:
    """Return the origin of a client's newest traced message that matches, "" if none does."""
    origins: dict[int, str] = {}
    traces = await walk(cluster, "traces", ListQuery(limit=PLACE_ROWS))
    lacked = _kinds_lacked("traces", traces.partial)
    for node, name in dict.fromkeys((node, row.trace) for node, row in traces.rows):
        where = {"trace": name or "", "client_id": client_id[:NOTED_MAX]}
        events, more = await place(cluster, node, "trace", where, PLACE_ROWS)
        origins |= {event.at_us or 0: event.origin for event in events if event.origin and matches(event)}
        lacked += more
    return origins[max(origins)] if origins else "", lacked
