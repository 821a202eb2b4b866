"""Why nothing reaches a client: the conditions in the order in which they decide, each a sentence with its numbers.

The first one that holds is the cause; the others that hold stand behind it. Names of settings are those of
docs/settings.md.
"""

from collections.abc import Iterator, Sequence

from admin.explain.story import Step, Story, count, since
from admin.gather import Missing
from admin.queries import ClientView
from wire.messages.look_rows_clients import SeenClientNow, SeenSessionNow, SeenSubscription
from wire.messages.look_rows_nodes import SeenJournal
from wire.messages.look_rows_topics import SeenMatch

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


def client_story(
    view: ClientView,
    now_ms: int,
    subscriptions: Sequence[SeenSubscription],
    *,
    topic: str = "",
    matches: Sequence[SeenMatch] = (),
    journal: Sequence[SeenJournal] = (),
    partial: Sequence[Missing] = (),
) -> Story:
    """Tell why nothing reaches a client.

    Args:
        view: What two nodes know of it.
        now_ms: UTC.
        subscriptions: Of the client.
        topic: It expects messages of this topic; "": of any.
        matches: Subscriptions of this client that the topic meets or nearly meets.
        journal: Entries about this client, of all nodes that answered.
        partial: Nodes that did not answer, beside those of ``view``.
    """
    steps = [*_placed(view), *_kept(view, now_ms)]
    lacked = tuple(dict.fromkeys((*view.partial, *partial)))
    if view.session is not None or view.connection is not None:
        steps += _unmatched(view, subscriptions, topic, matches)
        steps += _dropped(view, journal)
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
    return Story(question, steps, steps[0] if steps else None, had, lacked, nothing)


def _placed(view: ClientView) -> Iterator[Step]:
    """Unknown, absent, or of a partition that nobody serves."""
    if not view.primary:
        yield Step(
            "",
            "no_primary",
            f"partition {view.partition} has no primary: no node holds its session and its queue now",
        )
        return
    session, silent = view.session, {missing.node for missing in view.partial}
    if session is None:
        if view.primary not in silent and view.connection is None:
            yield Step(
                view.primary,
                "unknown",
                f"the primary of partition {view.partition} knows no session and no connection of this client ID",
            )
        return
    if not session.online and session.durable:
        queued = session.queued or 0
        expires = _expires(session.expires_in_s)
        yield Step(
            view.primary,
            "absent",
            f"it is not connected{_away(session)}; {count(queued, 'message')} wait in its queue{expires}",
            facts={"queued": queued, "bytes": session.bytes, "oldest_s": session.oldest_s},
        )
    if session.acknowledges is False:
        in_sync = count(session.in_sync or 0, "copy", "copies")
        yield Step(
            view.primary,
            "copies",
            f"partition {view.partition} acknowledges nothing: {in_sync} in sync (router.min_in_sync)",
        )


def _away(session: SeenSessionNow) -> str:
    return f" since {session.away_since_s:.0f} s" if session.away_since_s is not None else ""


def _expires(seconds: int | None) -> str:
    return (
        ""
        if seconds is None
        else "; its session does not expire"
        if seconds < 0
        else f"; its session expires in {seconds} s"
    )


def _kept(view: ClientView, now_ms: int) -> Iterator[Step]:
    """Yield what keeps messages from a client that is connected."""
    connection, session = view.connection, view.session
    if connection is not None:
        yield from _edge_keeps(view.edge, connection, now_ms)
    yield from _window(view, connection, session, now_ms)
    reads = (connection.retained_reads or 0 if connection else 0) + (session.retained_reads or 0 if session else 0)
    if reads or (session is not None and session.holds):
        held = connection.held_messages or 0 if connection is not None else 0
        node = view.edge if connection is not None and connection.retained_reads else view.primary
        yield Step(
            node,
            "retained",
            f"{count(reads, 'read')} of retained messages under way: {count(held, 'live message')} wait for them",
        )
    if session is not None and session.behind_commit:
        yield Step(
            view.primary, "commit", "its queue waits for the commit of an operation at the copies of its partition"
        )
    if session is not None and session.opening:
        yield Step(view.primary, "opening", "a CONNECT of it waits for the end of the connection before it")


def _edge_keeps(edge: str, connection: SeenClientNow, now_ms: int) -> Iterator[Step]:
    if connection.fenced:
        yield Step(
            edge, "fenced", f"{edge} has no lease (router.lease_s): it delivers nothing until a router renews it"
        )
    unsent, bound = connection.unsent_bytes or 0, connection.unsent_bytes_max or 0
    if connection.unsent_since_ms or connection.lagging or (bound and unsent > bound):
        drops = ", and QoS 0 towards it is dropped (edge.lagging_after_ms)" if connection.lagging else ""
        yield Step(
            edge,
            "socket",
            f"its socket does not take bytes: {unsent} unsent of {bound} (edge.output_buffer_bytes_max)"
            f"{since(connection.unsent_since_ms, now_ms)}{drops}",
            connection.unsent_since_ms,
            {"unsent_bytes": unsent, "unsent_bytes_max": bound},
        )


def _window(
    view: ClientView, connection: SeenClientNow | None, session: SeenSessionNow | None, now_ms: int
) -> Iterator[Step]:
    """A full window, and whose bound it is."""
    if connection is None:
        return
    window = connection.window or (session.window if session is not None else 0) or 0
    out = max(connection.inflight or 0, (session.out or 0) if session is not None else 0)
    waits = max(connection.queued or 0, (session.queued or 0) - out if session is not None else 0)
    full_since = connection.window_full_since_ms
    if not window or out < window or not (waits > 0 or full_since):
        return
    packet = connection.oldest_packet if connection.oldest_packet is not None else session and session.head_packet
    topic = connection.oldest_topic or (session.head_topic if session is not None else "") or ""
    oldest = f"; the oldest is packet {packet}" + (f" of topic {topic!r}" if topic else "") if packet else ""
    bound = "its Receive Maximum" if connection.receive_maximum == window else "edge.outbound_window_max"
    setting = "receive_maximum" if connection.receive_maximum == 1 else "window"
    age = f", waiting for {connection.oldest_s:.1f} s" if connection.oldest_s else ""
    yield Step(
        view.edge,
        setting,
        f"its window is full{since(full_since, now_ms)}: {out} of {window} ({bound}, at most edge.outbound_window_max) "
        f"are not acknowledged{oldest}; {count(waits, 'message')} wait behind them{age}",
        full_since,
        {"inflight": out, "window": window, "oldest_packet": packet, "waiting": waits},
    )


def _unmatched(
    view: ClientView, subscriptions: Sequence[SeenSubscription], topic: str, matches: Sequence[SeenMatch]
) -> Iterator[Step]:
    node = view.edge or view.primary
    if not topic:
        if not subscriptions and node not in {missing.node for missing in view.partial}:
            yield Step(node, "no_subscription", "it has no subscription")
        return
    takes = [match for match in matches if not match.why]
    if takes and all(match.no_local for match in takes):
        why = f"its filter {takes[0].filter!r} has No Local: what it publishes itself does not come to it"
        yield Step(node, "no_local", why)
    if takes:
        return
    misses = [match for match in matches if match.why and match.why != "level"]
    for match in misses:
        why = WORDS_OF_MISS.get(match.why or "", match.why or "")
        yield Step(node, match.why or "miss", f"its filter {match.filter!r} meets {topic!r}, but {why}")
    if not misses:
        near = [one.filter for one in subscriptions if _is_near(one.filter or "", topic)]
        hint = f"; {near[0]!r} misses it by one level" if near else ""
        yield Step(
            node, "no_subscription", f"none of its {count(len(subscriptions), 'subscription')} meets {topic!r}{hint}"
        )


def _is_near(topic_filter: str, topic: str) -> bool:
    """Return whether a filter misses a topic by one level: another word, one more, or one less."""
    parts, levels = topic_filter.split("/"), topic.split("/")
    shared = min(len(parts), len(levels))
    wrong = sum(part not in ("+", level) for part, level in zip(parts[:shared], levels[:shared], strict=True))
    return wrong + abs(len(parts) - len(levels)) == 1


def _dropped(view: ClientView, journal: Sequence[SeenJournal]) -> Iterator[Step]:
    for node, dropped, where in (
        (view.primary, view.session.dropped if view.session is not None else 0, "its queue"),
        (view.edge, view.connection.dropped if view.connection is not None else 0, "its connection"),
    ):
        if dropped:
            yield Step(node, "dropped", f"{where} dropped {count(dropped, 'message')}", facts={"dropped": dropped})
    for entry in journal:
        if entry.event == "drop":
            of = f" of {entry.topic!r}" if entry.topic else ""
            yield Step(
                entry.node or "",
                "drop",
                f"a message{of} was dropped: {entry.reason}",
                entry.at_ms,
                {"origin": entry.origin},
            )


def _taken_over(view: ClientView, journal: Sequence[SeenJournal], now_ms: int) -> Iterator[Step]:
    """Yield the newest takeover: what an earlier connection acknowledged never comes again."""
    if view.connection is None:
        return
    found = max(
        (entry for entry in journal if entry.event == "takeover"), key=lambda entry: entry.at_ms or 0, default=None
    )
    if found is not None:
        why = (
            f"a newer connection took over{since(found.at_ms, now_ms)}: what the earlier one acknowledged does not come"
        )
        yield Step(found.node or "", "takeover", f"{why} again", found.at_ms)
