"""Explains why a client receives no messages: checks conditions in the order in which they decide.

The first condition that holds is the cause; the other ones that hold follow it. Setting names are those of
docs/settings.md.
"""

from collections.abc import Iterator, Sequence

from admin.explain.explanation import Explanation, ExplanationStep
from admin.explain.texts import clock, count, number, since, span
from admin.queries import ClientView
from admin.scatter_gather import MissingRows
from conf.drop_reasons import REASONS
from wire.messages.client_rows import ClientDetail, SessionDetail, SubscriptionListRow
from wire.messages.node_rows import JournalRow
from wire.messages.topic_rows import MatchRow

__all__ = ["explain_client"]

MISS_TEXTS = {
    "no_local": "it published the message itself, and its subscription has No Local",
    "access": "its access rules deny receiving this topic",
    "size": "the message is larger than its Maximum Packet Size",
    "level": "the filter misses the topic by one level",
    "qos0_away": "it is not connected, and the message is QoS 0, which is not queued",
    "slow": "QoS 0 is dropped for a client whose output buffer is full",
    "window": "its send window is full",
    "queue_full": "its queue is full (storage.queue_messages_max): the oldest entry is dropped",
    "closed": "its connection has ended",
    "ending": "its session is ending",
}
SETTING_OF = {  # settings of reasons whose texts do not name them
    "closed": "edge.keep_alive_max_s",
    "no_commit": "router.min_in_sync",
    "no_lease": "router.lease_s",
    "no_primary": "router.lease_s",
    "queue_full": "storage.queue_messages_max, storage.queue_bytes_max",
    "slow": "edge.output_buffer_bytes_max, edge.lagging_after_ms",
    "too_large": "edge.maximum_packet_size",
    "window": "edge.pending_messages_max, edge.pending_bytes_max",
}


def explain_client(
    view: ClientView,
    now_ms: int,
    subscriptions: Sequence[SubscriptionListRow],
    *,
    topic: str = "",
    matches: Sequence[MatchRow] = (),
    journal: Sequence[JournalRow] = (),
    partial: Sequence[MissingRows] = (),
    copies: Sequence[str] = (),
) -> Explanation:
    """Explain why a client receives no messages.

    Args:
        view: Its session and connection.
        now_ms: UTC.
        subscriptions: Of the client.
        topic: Expected topic; "": any.
        matches: Its subscriptions that match or nearly match the topic.
        journal: Journal entries about this client, of all nodes that answered.
        partial: Nodes that did not answer, besides those of ``view``.
        copies: Nodes with an in-sync copy of its partition.
    """
    steps = [*_check_session(view, now_ms, journal, copies), *_check_blocked(view, now_ms)]
    lacked = tuple(dict.fromkeys((*view.partial, *partial)))
    if view.session is not None or view.connection is not None:
        steps += _check_subscriptions(view, subscriptions, topic, matches)
        steps += _check_drops(view, journal, now_ms)
        steps += _check_takeover(view, journal, now_ms)
    had = [f"the map, {' now, '.join(view.asked)} now"] if view.asked else ["the map"]
    if journal:
        had.append(f"journals with {count(len(journal), 'entry', 'entries')} about it")
    question = (
        f"why does nothing of {topic!r} reach {view.client_id!r}?"
        if topic
        else f"why does nothing reach {view.client_id!r}?"
    )
    summary = "no source shows a reason"
    return Explanation(question, steps, steps[0] if steps else None, had, lacked, summary)


def _check_session(
    view: ClientView, now_ms: int, journal: Sequence[JournalRow], copies: Sequence[str]
) -> Iterator[ExplanationStep]:
    """Yield whether the client is unknown, disconnected, or in a partition without a primary."""
    if not view.primary:
        there = count(len(copies), "copy", "copies")
        where = f"; {there} in sync at {', '.join(copies)}: start one of them" if copies else "; no copy is in sync"
        why = f"partition {view.partition} has no primary: its session and queue are unavailable{where}"
        yield ExplanationStep("", "no_primary", f"{why} (router.replicas, router.lease_s)")
        return
    session, silent = view.session, {missing.node for missing in view.partial}
    if session is None:
        if view.primary not in silent and view.connection is None:
            yield _unknown(view)
            yield from _find_ends(journal, now_ms)
        return
    if not session.online and session.durable:
        yield _disconnected(view.primary, session, now_ms)
    if session.acknowledges is False:
        in_sync = count(session.in_sync or 0, "copy", "copies")
        yield ExplanationStep(
            view.primary,
            "copies",
            f"partition {view.partition} commits no operation: {in_sync} in sync (router.min_in_sync)",
        )


def _unknown(view: ClientView) -> ExplanationStep:
    why = f"the primary of partition {view.partition} has no session and no connection of this client ID"
    kept = "a session expires after its Session Expiry Interval (at most edge.session_expiry_max_s)"
    return ExplanationStep(view.primary, "unknown", f"{why}; {kept}")


def _find_ends(journal: Sequence[JournalRow], now_ms: int) -> Iterator[ExplanationStep]:
    """Yield how the session of an unknown client ended, and how its last CONNECT was refused."""
    for event, text in (
        ("session_end", "its session ended"),
        ("refused", "it was refused"),
        ("kicked", "it was kicked"),
        ("ended", "its edge closed its connection"),
    ):
        entry = _newest([one for one in journal if event != "ended" or (one.reason or "").startswith("0x")], event)
        if entry is not None:
            of = f": {entry.reason}" if entry.reason else ""
            more = f" ({entry.detail})" if entry.detail else ""
            why = f"{text}{_at(entry, now_ms)}{of}{more}"
            yield ExplanationStep(entry.node or "", event, why, entry.at_ms)


def _newest(journal: Sequence[JournalRow], event: str) -> JournalRow | None:
    found = (entry for entry in journal if entry.event == event)
    return max(found, key=lambda entry: entry.at_ms or 0, default=None)


def _at(entry: JournalRow, now_ms: int) -> str:
    return f" at {clock(entry.at_ms, now_ms)}" if entry.at_ms is not None else ""


def _disconnected(primary: str, session: SessionDetail, now_ms: int) -> ExplanationStep:
    queued, away_s, most = session.queued or 0, session.away_since_s, session.queue_max
    away = since(now_ms - int(away_s * 1000), now_ms) if away_s is not None else ""
    waits = "waits" if queued == 1 else "wait"
    oldest = f", the oldest for {span(session.oldest_s)}" if session.oldest_s is not None else ""
    limit = f" of at most {number(most)} (storage.queue_messages_max)" if most else " (storage.queue_messages_max)"
    return ExplanationStep(
        primary,
        "absent",
        f"it is not connected{away}; {count(queued, 'message')}{limit} {waits} in its "
        f"queue{oldest}{_expires(session.expires_in_s)}",
        facts={"queued": queued, "bytes": session.bytes, "oldest_s": session.oldest_s},
    )


def _expires(seconds: int | None) -> str:
    if seconds is None:
        return ""
    if seconds < 0:
        return "; its session does not expire"
    return f"; its session expires in {span(seconds)}, at most edge.session_expiry_max_s"


def _check_blocked(view: ClientView, now_ms: int) -> Iterator[ExplanationStep]:
    """Yield the conditions that block deliveries to a connected client."""
    connection, session = view.connection, view.session
    if connection is not None:
        yield from _check_edge(view.edge, connection, now_ms)
    yield from _check_window(view, connection, session, now_ms)
    yield from _check_retained_reads(view, connection, session)
    if session is not None and session.behind_commit:
        why = "its queue waits for the commit of an operation at the copies of its partition (router.min_in_sync)"
        yield ExplanationStep(view.primary, "commit", why)
    if session is not None and session.opening:
        yield ExplanationStep(view.primary, "opening", "its CONNECT waits for the end of its previous connection")


def _check_edge(edge: str, connection: ClientDetail, now_ms: int) -> Iterator[ExplanationStep]:
    if connection.fenced:
        ago = f" for {span(connection.fenced_s)}" if connection.fenced_s is not None else ""
        why = f"{edge} has had no lease{ago} (router.lease_s): it delivers no messages until a router renews it"
        yield ExplanationStep(edge, "fenced", why)
    unsent, bound = connection.unsent_bytes or 0, connection.unsent_bytes_max or 0
    if connection.unsent_since_ms or connection.lagging or (bound and unsent > bound):
        drops = ", and QoS 0 messages to it are dropped (edge.lagging_after_ms)" if connection.lagging else ""
        yield ExplanationStep(
            edge,
            "socket",
            f"its socket accepts no bytes{since(connection.unsent_since_ms, now_ms)}: {number(unsent)} bytes "
            f"are unsent; from {number(bound)} on it counts as slow (edge.output_buffer_bytes_max){drops}",
            connection.unsent_since_ms,
            {"unsent_bytes": unsent, "unsent_bytes_max": bound},
        )


def _check_window(
    view: ClientView, connection: ClientDetail | None, session: SessionDetail | None, now_ms: int
) -> Iterator[ExplanationStep]:
    """Yield a full send window with its bound. The partition keeps it for a durable session, else the edge."""
    if connection is None:
        return
    durable = session is not None and bool(session.durable)
    if session is not None and durable:
        window = session.window or connection.window or 0
        out = session.out if session.out is not None else connection.inflight or 0
        waits, waiting_s = (session.queued or 0) - out, session.waiting_s
    else:
        window, out = connection.window or 0, connection.inflight or 0
        waits, waiting_s = connection.queued or 0, connection.oldest_s
    full_since = connection.window_full_since_ms
    if full_since is None and waiting_s is not None and waits > 0:
        full_since = now_ms - int(waiting_s * 1000)
    if not window or out < window or not (waits > 0 or full_since):
        return
    packet = connection.oldest_packet if connection.oldest_packet is not None else session and session.head_packet
    # an edge does not store the topic of written messages
    topic = (session.head_topic if session is not None else "") or ""
    oldest = f"; the oldest is packet {packet}" + (f" of topic {topic!r}" if topic else "") if packet else ""
    setting = "receive_maximum" if connection.receive_maximum == 1 else "window"
    age = f", the first for {span(waiting_s)}" if waiting_s else ""
    yield ExplanationStep(
        view.edge,
        setting,
        f"its window is full{since(full_since, now_ms)}: {number(out)} of {number(window)} messages of QoS 1 and 2 are "
        f"not acknowledged ({_window_bound(connection, window, durable=durable)}){oldest}; "
        f"{count(waits, 'message')} {'waits' if waits == 1 else 'wait'} behind them{age}",
        full_since,
        {"inflight": out, "window": window, "oldest_packet": packet, "waiting": waits},
    )


def _window_bound(connection: ClientDetail, window: int, *, durable: bool) -> str:
    """Return the bound of a window: the client's Receive Maximum, or the setting if it is smaller."""
    setting = "storage.outbound_window_max" if durable else "edge.outbound_window_max"
    maximum = connection.receive_maximum
    if maximum is None or maximum <= window:
        return f"its Receive Maximum; {setting} is no smaller"
    return f"{setting}; its Receive Maximum is {number(maximum)}"


def _check_retained_reads(
    view: ClientView, connection: ClientDetail | None, session: SessionDetail | None
) -> Iterator[ExplanationStep]:
    """Yield reads of retained messages for a new subscription: live messages wait for them."""
    of_edge = connection.retained_reads or 0 if connection is not None else 0
    of_session = session.retained_reads or 0 if session is not None else 0
    if not (of_edge or of_session or (session is not None and session.holds)):
        return
    if connection is not None and of_edge:
        held, left_s, setting = connection.held_messages or 0, connection.retained_left_s, "edge.retained_hold_s"
    else:
        held = (session.queued or 0) - (session.out or 0) if session is not None else 0
        left_s, setting = (session.retained_left_s if session is not None else None), "the hold of stored sessions"
    left = f", for {span(left_s)} more at most ({setting})" if left_s is not None else f" ({setting} expired)"
    yield ExplanationStep(
        view.edge if of_edge else view.primary,
        "retained",
        f"{count(of_edge + of_session, 'read')} of retained messages in progress: "
        f"{count(held, 'live message')} {'waits' if held == 1 else 'wait'} for them{left}",
    )


def _check_subscriptions(
    view: ClientView, subscriptions: Sequence[SubscriptionListRow], topic: str, matches: Sequence[MatchRow]
) -> Iterator[ExplanationStep]:
    node = view.edge or view.primary
    if not topic:
        if not subscriptions and node not in {missing.node for missing in view.partial}:
            yield ExplanationStep(node, "no_subscription", "it has no subscription")
        return
    takes = [match for match in matches if not match.why]
    if takes and all(match.no_local for match in takes):
        why = f"its filter {takes[0].filter!r} has No Local: it does not receive its own messages"
        yield ExplanationStep(node, "no_local", why)
    if takes:
        return
    misses = [match for match in matches if match.why and match.why != "level"]
    for match in misses:
        why = MISS_TEXTS.get(match.why or "", match.why or "")
        yield ExplanationStep(node, match.why or "miss", f"its filter {match.filter!r} matches {topic!r}, but {why}")
    if not misses:
        near = [one.filter for one in subscriptions if _is_near(one.filter or "", topic)]
        hint = f"; {near[0]!r} misses it by one level" if near else ""
        total = len(subscriptions)
        which = "its one subscription does not match" if total == 1 else f"none of its {total} subscriptions matches"
        yield ExplanationStep(node, "no_subscription", f"{which} {topic!r}{hint}")


def _is_near(topic_filter: str, topic: str) -> bool:
    """Return whether a filter misses a topic by one level: a different, an additional or a missing one."""
    parts, levels = topic_filter.split("/"), topic.split("/")
    shared = min(len(parts), len(levels))
    wrong = sum(part not in ("+", level) for part, level in zip(parts[:shared], levels[:shared], strict=True))
    return wrong + abs(len(parts) - len(levels)) == 1


def _check_drops(view: ClientView, journal: Sequence[JournalRow], now_ms: int) -> Iterator[ExplanationStep]:
    """Yield counts and reasons of dropped messages, then the drops in journals."""
    drops = [entry for entry in journal if entry.event == "drop"]
    for node, dropped, where in (
        (view.primary, view.session.dropped if view.session is not None else 0, "its queue"),
        (view.edge, view.connection.dropped if view.connection is not None else 0, "its connection"),
    ):
        if dropped:
            because = _drop_reasons([entry for entry in drops if entry.node == node], now_ms)
            why = f"{where} dropped {count(dropped, 'message')}{because}"
            yield ExplanationStep(node, "dropped", why, facts={"dropped": dropped})
    for entry in drops:
        of = f" of {entry.topic!r}" if entry.topic else ""
        yield ExplanationStep(
            entry.node or "",
            "drop",
            f"a message{of} was dropped{_at(entry, now_ms)}: {entry.reason}, {_meaning(entry.reason or '')}",
            entry.at_ms,
            {"origin": entry.origin, "reason": entry.reason},
        )


def _drop_reasons(drops: Sequence[JournalRow], now_ms: int) -> str:
    """Return the drop reasons in a node's journal, newest first, and the time of the last one."""
    if not drops:
        return "; the node's journal has no entries of them"
    newest = sorted(drops, key=lambda entry: entry.at_ms or 0, reverse=True)
    reasons = list(dict.fromkeys(entry.reason or "" for entry in newest))
    text = "; ".join(f"{reason}, {_meaning(reason)}" for reason in reasons)
    return f" because of {text}; the last one{_at(newest[0], now_ms)}"


def _meaning(reason: str) -> str:
    setting = SETTING_OF.get(reason, "")
    return REASONS.get(reason, "a reason unknown to this release") + (f" ({setting})" if setting else "")


def _check_takeover(view: ClientView, journal: Sequence[JournalRow], now_ms: int) -> Iterator[ExplanationStep]:
    """Yield the newest takeover: messages that an earlier connection acknowledged are not sent again."""
    found = _newest(journal, "takeover")
    if view.connection is None or found is None:
        return
    why = (
        f"a newer connection took over{_at(found, now_ms)}: messages that the earlier one acknowledged are "
        "not sent again"
    )
    yield ExplanationStep(found.node or "", "takeover", why, found.at_ms)
