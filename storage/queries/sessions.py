"""Sessions at their partitions' primary, and one session with all states that may block its queue."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from storage.hosting.hosted_partition import HostedPartition
from storage.queries.query_rows import QueryRows, first_waiting_seq, oldest_seq
from storage.sessions.holders import SessionOwner
from storage.state.durable_sessions import DurableSession
from storage.state.rows import NEVER, STATE_QUEUED, STATE_RELEASED
from wire.queries.source import Columns, Place, QueryRefused, RowScan, RowSource

__all__ = ["STATES", "session_sources"]

STATES = {STATE_QUEUED: "queued", 1: "sent", STATE_RELEASED: "released"}


class SingleSession(NamedTuple):
    """One session, or a connection whose session ends with it."""

    hosted: HostedPartition
    session: DurableSession | None
    holder: SessionOwner | None
    client_id: str


def session_sources(shown: QueryRows) -> dict[str, RowSource]:
    """Return the row sources of sessions."""

    def total() -> int:
        return sum(len(hosted.partition.sessions) for hosted in shown.from_partition(0))

    def walk(ask: RowScan) -> Iterator[tuple[Place, Any]]:
        partition, number = ask.numbers(2)
        for hosted, session in shown.sessions_after(partition, number, ask.now):
            yield (hosted.partition.number, session.number), SingleSession(hosted, session, None, session.client_id)

    def named(ask: RowScan) -> Iterator[tuple[Place, Any]]:
        client_id = ask.where["client_id"]
        hosted = shown.of_client(client_id)
        session = hosted.partition.by_client.get(client_id)
        holder = hosted.owners.holders.get(client_id)
        if session is None and holder is None:
            raise QueryRefused(f"client {client_id[:64]!r} has no session here, and no connection")
        yield 1, SingleSession(hosted, session, holder, client_id)

    columns = _columns(shown)
    return {
        "sessions": RowSource(walk, columns, total),
        "session": RowSource(named, {**columns, **_columns_of_one(shown)}),
    }


def _of(read: Any) -> Any:
    """Return a column that is read from a durable session; null for a connection without one."""
    return lambda one: read(one.session) if one.session is not None else None


def _columns(shown: QueryRows) -> Columns:
    def oldest(one: SingleSession) -> float | None:
        if one.session is None or not one.session.queued:
            return None
        return shown.age_s(one.hosted, shown.head_arrival(one.hosted, one.session))

    def is_bound(one: SingleSession) -> bool | None:
        if one.session is None or not one.session.queued:
            return None
        return shown.head_arrival(one.hosted, one.session) == 0 or None

    def expires_in_s(one: SingleSession) -> int | None:
        session = one.session
        if session is None:
            return None
        if session.deadline == NEVER:
            return -1
        return max(0, session.deadline - shown.served_ms(one.hosted.partition.number)) // 1000

    return {
        "client_id": lambda one: one.client_id,
        "online": lambda one: bool(_edge(one)),
        "node": _edge,
        "queued": _of(lambda session: session.queued),
        "bytes": _of(lambda session: session.queue_bytes),
        "oldest_s": oldest,
        "oldest_lower_bound": is_bound,
        "expires_in_s": expires_in_s,
        "durable": lambda one: one.session is not None,
        "session": lambda one: one.session.number if one.session is not None else 0,
        "partition": lambda one: one.hosted.partition.number,
        "storage": lambda _: shown.node,
        "replicas": lambda one: sorted(one.hosted.partition.replicas),
        "last_seq": _of(lambda session: session.next_seq - 1),
        "will": lambda one: one.hosted.owners.wills.of(one.client_id) is not None,
        "user": _user,
        "subscriptions": _of(lambda session: len(session.made("subscriptions") or ())),
        "inflight": _of(lambda session: len(session.made("inflight") or ())),
        "dropped": _of(lambda session: session.dropped),
        "expiry_s": _of(lambda session: session.expiry_s),
        "connection": _connection,
        "owner_epoch": lambda one: one.session.owner_epoch if one.session is not None else _holder_epoch(one),
    }


def _edge(one: SingleSession) -> str:
    if one.session is not None and one.session.edge:
        return one.session.edge
    return one.holder.edge if one.holder is not None else ""


def _connection(one: SingleSession) -> int | None:
    if one.session is not None and one.session.edge:
        return one.session.connection
    return one.holder.connection if one.holder is not None else None


def _user(one: SingleSession) -> str:
    if one.session is not None:
        return one.session.owner
    return one.holder.owner.user if one.holder is not None else ""


def _holder_epoch(one: SingleSession) -> int | None:
    return one.holder.owner_epoch if one.holder is not None else None


def _columns_of_one(shown: QueryRows) -> Columns:
    def head(one: SingleSession) -> Any:
        session = one.session
        session_seq = oldest_seq(session) if session is not None else None
        if session is None or session_seq is None:
            return None
        return shown.entry(one.hosted, session, session_seq)

    def head_packet(one: SingleSession) -> int | None:
        session = one.session
        session_seq = oldest_seq(session) if session is not None else None
        flight = (session.made("inflight") or {}).get(session_seq) if session is not None else None
        return flight.packet_identifier if flight is not None else None

    def head_state(one: SingleSession) -> str | None:
        session = one.session
        if session is None or not session.queued:
            return None
        flight = next(iter((session.made("inflight") or {}).values()), None)
        return STATES.get(flight.state, "sent") if flight is not None else "queued"

    def topic(one: SingleSession) -> str | None:
        entry = head(one)
        return entry.topic.decode() if entry is not None else None

    def away_since_s(one: SingleSession) -> float | None:
        return shown.away_s(one.hosted, one.session) if one.session is not None else None

    def retained_left_s(one: SingleSession) -> float | None:
        reads = one.session.reads if one.session is not None else None
        left = reads.left_ms(shown.served_ms(one.hosted.partition.number)) if reads is not None else None
        return left / 1000 if left is not None else None

    def waiting_s(one: SingleSession) -> float | None:
        session = one.session
        session_seq = first_waiting_seq(session) if session is not None and session.edge else None
        if session is None or session_seq is None:
            return None
        entry = shown.entry(one.hosted, session, session_seq)
        return shown.age_s(one.hosted, entry.arrived) if entry is not None else None

    def will_topic(one: SingleSession) -> str | None:
        will = one.hosted.owners.wills.of(one.client_id)
        return will.topic if will is not None else None

    def will_delay_s(one: SingleSession) -> int | None:
        will = one.hosted.owners.wills.of(one.client_id)
        return will.delay_s if will is not None else None

    return {
        "window": _of(lambda session: session.window),
        "out": _of(lambda session: session.out),
        "out_bytes": _of(lambda session: session.out_bytes),
        "unsent": _of(lambda session: len(session.made("unsent") or ())),
        "head_seq": _of(oldest_seq),
        "head_packet": head_packet,
        "head_topic": topic,
        "head_state": head_state,
        "queue_max": lambda one: _queue_most(one)[0],
        "queue_bytes_max": lambda one: _queue_most(one)[1],
        "retained_reads": _of(lambda session: len(session.reads) if session.reads is not None else 0),
        "holds": _of(lambda session: session.held),
        "retained_left_s": retained_left_s,
        "waiting_s": waiting_s,
        "opening": lambda one: one.client_id in one.hosted.owners.openings,
        "away_since_s": away_since_s,
        "behind_commit": _behind,
        "will_topic": will_topic,
        "will_delay_s": will_delay_s,
        "inbound": _of(lambda session: len(session.made("inbound") or ())),
        "in_sync": lambda one: len(shown.map().partitions[one.hosted.partition.number].in_sync),
        "acknowledges": lambda one: one.hosted.partition.acknowledges,
    }


def _queue_most(one: SingleSession) -> tuple[int, int]:
    """Return the bounds of a session's queue in messages and bytes."""
    settings = one.hosted.partition.settings
    most = settings.queue_messages_max, settings.queue_bytes_max
    return one.session.queue_most(*most) if one.session is not None else most


def _behind(one: SingleSession) -> bool | None:
    return one.session.behind > one.hosted.partition.released if one.session is not None else None
