"""Why nothing reaches a client: the conditions in the order in which they decide, each a sentence with its numbers.

The first one that holds is the cause; the others that hold stand behind it. Names of settings are those of
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

__all__ = ["client_story"]

WORDS_OF_MISS = {
    "no_local": "it published the message itself, and its subscription has No Local",
    "access": "its rules do not let it receive this topic",
    "size": "the message is larger than its Maximum Packet Size",
    "level": "the filter misses the topic by one level",
    "qos0_away": "it is not connected, and the message arrives at QoS 0, which is not queued",
    "slow": "QoS 0 for a client whose output is full is dropped",
    "window": "its window is full",
    "queue_full": "its queue is full (storage.queue_messages_max): the oldest entry goes",
    "closed": "its connection has ended",
    "ending": "its session is ending",
}
SETTING_OF = {  # of a reason whose sentence does not name it
    "closed": "edge.keep_alive_max_s",
    "no_commit": "router.min_in_sync",
    "no_lease": "router.lease_s",
    "no_primary": "router.lease_s",
    "queue_full": "storage.queue_messages_max, storage.queue_bytes_max",
    "slow": "edge.output_buffer_bytes_max, edge.lagging_after_ms",
    "too_large": "edge.maximum_packet_size",
    "window": "edge.pending_messages_max, edge.pending_bytes_max",
}


def client_story(
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
    """Tell why nothing reaches a client.

    Args:
        view: What two nodes know of it.
        now_ms: UTC.
        subscriptions: Of the client.
        topic: It expects messages of this topic; "": of any.
        matches: Subscriptions of this client that the topic meets or nearly meets.
        journal: Entries about this client, of all nodes that answered.
        partial: Nodes that did not answer, beside those of ``view``.
        copies: Nodes with a copy in sync of its partition.
    """
    steps = [*_placed(view, now_ms, journal, copies), *_kept(view, now_ms)]
    lacked = tuple(dict.fromkeys((*view.partial, *partial)))
    if view.session is not None or view.connection is not None:
        steps += _unmatched(view, subscriptions, topic, matches)
        steps += _dropped(view, journal, now_ms)
        steps += _taken_over(view, journal, now_ms)
    had = [f"the map, {' now, '.join(view.asked)} now"] if view.asked else ["the map"]
    if journal:
        had.append(f"journals with {count(len(journal), 'entry', 'entries')} about it")
    question = (
        f"why does nothing of {topic!r} reach {view.client_id!r}?"
        if topic
        else f"why does nothing reach {view.client_id!r}?"
    )
    nothing = "nothing that was asked keeps messages from it"
    return Explanation(question, steps, steps[0] if steps else None, had, lacked, nothing)


def _placed(
    view: ClientView, now_ms: int, journal: Sequence[JournalRow], copies: Sequence[str]
) -> Iterator[ExplanationStep]:
    """Unknown, absent, or of a partition that nobody serves."""
    if not view.primary:
        there = count(len(copies), "copy", "copies")
        where = f"; {there} in sync at {', '.join(copies)}: start one of them" if copies else "; no copy is in sync"
        why = f"partition {view.partition} has no primary: no node holds its session and its queue now{where}"
        yield ExplanationStep("", "no_primary", f"{why} (router.replicas, router.lease_s)")
        return
    session, silent = view.session, {missing.node for missing in view.partial}
    if session is None:
        if view.primary not in silent and view.connection is None:
            yield _unknown(view)
            yield from _ended(journal, now_ms)
        return
    if not session.online and session.durable:
        yield _absent(view.primary, session, now_ms)
    if session.acknowledges is False:
        in_sync = count(session.in_sync or 0, "copy", "copies")
        yield ExplanationStep(
            view.primary,
            "copies",
            f"partition {view.partition} acknowledges nothing: {in_sync} in sync (router.min_in_sync)",
        )


def _unknown(view: ClientView) -> ExplanationStep:
    why = f"the primary of partition {view.partition} knows no session and no connection of this client ID"
    kept = "a session is kept for its Session Expiry Interval (at most edge.session_expiry_max_s)"
    return ExplanationStep(view.primary, "unknown", f"{why}; {kept}")


def _ended(journal: Sequence[JournalRow], now_ms: int) -> Iterator[ExplanationStep]:
    """Yield how the session of a client that nobody knows ended, and how its last CONNECT was refused."""
    for event, text in (
        ("session_end", "its session ended"),
        ("refused", "it was refused"),
        ("kicked", "it was kicked"),
        ("ended", "its edge ended its connection"),
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


def _absent(primary: str, session: SessionDetail, now_ms: int) -> ExplanationStep:
    queued, away_s, most = session.queued or 0, session.away_since_s, session.queue_max
    away = since(now_ms - int(away_s * 1000), now_ms) if away_s is not None else ""
    waits = "waits" if queued == 1 else "wait"
    oldest = f", the oldest for {span(session.oldest_s)}" if session.oldest_s is not None else ""
    room = f" of at most {number(most)} (storage.queue_messages_max)" if most else " (storage.queue_messages_max)"
    return ExplanationStep(
        primary,
        "absent",
        f"it is not connected{away}; {count(queued, 'message')}{room} {waits} in its queue{oldest}"
        f"{_expires(session.expires_in_s)}",
        facts={"queued": queued, "bytes": session.bytes, "oldest_s": session.oldest_s},
    )


def _expires(seconds: int | None) -> str:
    if seconds is None:
        return ""
    if seconds < 0:
        return "; its session does not expire"
    return f"; its session expires in {span(seconds)}, at most edge.session_expiry_max_s"


def _kept(view: ClientView, now_ms: int) -> Iterator[ExplanationStep]:
    """Yield what keeps messages from a client that is connected."""
    connection, session = view.connection, view.session
    if connection is not None:
        yield from _edge_keeps(view.edge, connection, now_ms)
    yield from _window(view, connection, session, now_ms)
    yield from _reads(view, connection, session)
    if session is not None and session.behind_commit:
        why = "its queue waits for the commit of an operation at the copies of its partition (router.min_in_sync)"
        yield ExplanationStep(view.primary, "commit", why)
    if session is not None and session.opening:
        yield ExplanationStep(view.primary, "opening", "a CONNECT of it waits for the end of the connection before it")


def _edge_keeps(edge: str, connection: ClientDetail, now_ms: int) -> Iterator[ExplanationStep]:
    if connection.fenced:
        ago = f" for {span(connection.fenced_s)}" if connection.fenced_s is not None else ""
        why = f"{edge} has had no lease{ago} (router.lease_s): it delivers nothing until a router renews it"
        yield ExplanationStep(edge, "fenced", why)
    unsent, bound = connection.unsent_bytes or 0, connection.unsent_bytes_max or 0
    if connection.unsent_since_ms or connection.lagging or (bound and unsent > bound):
        drops = ", and QoS 0 towards it is dropped (edge.lagging_after_ms)" if connection.lagging else ""
        yield ExplanationStep(
            edge,
            "socket",
            f"its socket does not take bytes{since(connection.unsent_since_ms, now_ms)}: {number(unsent)} bytes are "
            f"unsent, and it counts as slow from {number(bound)} on (edge.output_buffer_bytes_max){drops}",
            connection.unsent_since_ms,
            {"unsent_bytes": unsent, "unsent_bytes_max": bound},
        )


def _window(
    view: ClientView, connection: ClientDetail | None, session: SessionDetail | None, now_ms: int
) -> Iterator[ExplanationStep]:
    """A full window, and whose bound it is: of a durable session its partition keeps it, of another one its edge."""
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
    topic = (session.head_topic if session is not None else "") or ""  # an edge keeps no topic of what it has written
    oldest = f"; the oldest is packet {packet}" + (f" of topic {topic!r}" if topic else "") if packet else ""
    setting = "receive_maximum" if connection.receive_maximum == 1 else "window"
    age = f", the first for {span(waiting_s)}" if waiting_s else ""
    yield ExplanationStep(
        view.edge,
        setting,
        f"its window is full{since(full_since, now_ms)}: {number(out)} of {number(window)} messages of QoS 1 and 2 are "
        f"not acknowledged ({_bound(connection, window, durable=durable)}){oldest}; "
        f"{count(waits, 'message')} {'waits' if waits == 1 else 'wait'} behind them{age}",
        full_since,
        {"inflight": out, "window": window, "oldest_packet": packet, "waiting": waits},
    )


def _bound(connection: ClientDetail, window: int, *, durable: bool) -> str:
    """Return what bounds a window: the client's Receive Maximum, or the setting where that is smaller."""
    setting = "storage.outbound_window_max" if durable else "edge.outbound_window_max"
    told = connection.receive_maximum
    if told is None or told <= window:
        return f"its Receive Maximum; {setting} is no smaller"
    return f"{setting}; its Receive Maximum is {number(told)}"


def _reads(
    view: ClientView, connection: ClientDetail | None, session: SessionDetail | None
) -> Iterator[ExplanationStep]:
    """Retained messages that are read for a new subscription: live ones wait for them."""
    of_edge = connection.retained_reads or 0 if connection is not None else 0
    of_session = session.retained_reads or 0 if session is not None else 0
    if not (of_edge or of_session or (session is not None and session.holds)):
        return
    if connection is not None and of_edge:
        held, left_s, setting = connection.held_messages or 0, connection.retained_left_s, "edge.retained_hold_s"
    else:
        held = (session.queued or 0) - (session.out or 0) if session is not None else 0
        left_s, setting = (session.retained_left_s if session is not None else None), "the hold of stored sessions"
    left = f", for {span(left_s)} more at most ({setting})" if left_s is not None else f" ({setting} is over)"
    yield ExplanationStep(
        view.edge if of_edge else view.primary,
        "retained",
        f"{count(of_edge + of_session, 'read')} of retained messages under way: {count(held, 'live message')} "
        f"{'waits' if held == 1 else 'wait'} for them{left}",
    )


def _unmatched(
    view: ClientView, subscriptions: Sequence[SubscriptionListRow], topic: str, matches: Sequence[MatchRow]
) -> Iterator[ExplanationStep]:
    node = view.edge or view.primary
    if not topic:
        if not subscriptions and node not in {missing.node for missing in view.partial}:
            yield ExplanationStep(node, "no_subscription", "it has no subscription")
        return
    takes = [match for match in matches if not match.why]
    if takes and all(match.no_local for match in takes):
        why = f"its filter {takes[0].filter!r} has No Local: what it publishes itself does not come to it"
        yield ExplanationStep(node, "no_local", why)
    if takes:
        return
    misses = [match for match in matches if match.why and match.why != "level"]
    for match in misses:
        why = WORDS_OF_MISS.get(match.why or "", match.why or "")
        yield ExplanationStep(node, match.why or "miss", f"its filter {match.filter!r} meets {topic!r}, but {why}")
    if not misses:
        near = [one.filter for one in subscriptions if _is_near(one.filter or "", topic)]
        hint = f"; {near[0]!r} misses it by one level" if near else ""
        all_of_them = len(subscriptions)
        which = (
            "its one subscription does not meet"
            if all_of_them == 1
            else f"none of its {all_of_them} subscriptions meets"
        )
        yield ExplanationStep(node, "no_subscription", f"{which} {topic!r}{hint}")


def _is_near(topic_filter: str, topic: str) -> bool:
    """Return whether a filter misses a topic by one level: another word, one more, or one less."""
    parts, levels = topic_filter.split("/"), topic.split("/")
    shared = min(len(parts), len(levels))
    wrong = sum(part not in ("+", level) for part, level in zip(parts[:shared], levels[:shared], strict=True))
    return wrong + abs(len(parts) - len(levels)) == 1


def _dropped(view: ClientView, journal: Sequence[JournalRow], now_ms: int) -> Iterator[ExplanationStep]:
    """Yield how many messages were dropped and why, then the drops that journals name."""
    drops = [entry for entry in journal if entry.event == "drop"]
    for node, dropped, where in (
        (view.primary, view.session.dropped if view.session is not None else 0, "its queue"),
        (view.edge, view.connection.dropped if view.connection is not None else 0, "its connection"),
    ):
        if dropped:
            because = _because([entry for entry in drops if entry.node == node], now_ms)
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


def _because(drops: Sequence[JournalRow], now_ms: int) -> str:
    """Return the reasons that a node's journal has, the newest first, and when the last one was."""
    if not drops:
        return "; its node's journal does not reach back to them"
    newest = sorted(drops, key=lambda entry: entry.at_ms or 0, reverse=True)
    reasons = list(dict.fromkeys(entry.reason or "" for entry in newest))
    told = "; ".join(f"{reason}, {_meaning(reason)}" for reason in reasons)
    return f" because of {told}; the last one{_at(newest[0], now_ms)}"


def _meaning(reason: str) -> str:
    setting = SETTING_OF.get(reason, "")
    return REASONS.get(reason, "a reason that this release does not know") + (f" ({setting})" if setting else "")


def _taken_over(view: ClientView, journal: Sequence[JournalRow], now_ms: int) -> Iterator[ExplanationStep]:
    """Yield the newest takeover: what an earlier connection acknowledged never comes again."""
    found = _newest(journal, "takeover")
    if view.connection is None or found is None:
        return
    why = f"a newer connection took over{_at(found, now_ms)}: what the earlier one acknowledged does not come again"
    yield ExplanationStep(found.node or "", "takeover", why, found.at_ms)
