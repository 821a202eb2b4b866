"""Queues, messages in flight, and subscriptions of durable sessions."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from mqtt.topics import parse_shared
from storage.hosting.hosted_partition import HostedPartition
from storage.queries.query_rows import QueryRows
from storage.state import keys
from storage.state.durable_sessions import DurableSession
from storage.state.rows import NEVER, STATE_QUEUED, STATE_RELEASED, QueueEntry, SubscriptionRow, unpack
from storage.state.session_window import InFlight
from wire.messages.sessions import SessionSubscription
from wire.queries.source import Columns, Place, RowScan, RowSource

__all__ = ["STATES", "queue_sources"]

STATES = {STATE_QUEUED: "queued", 1: "sent", STATE_RELEASED: "released"}
PAYLOAD_HEAD_BYTES = 256


class _Queued(NamedTuple):
    """One entry of a queue; ``flight`` once it has its packet identifier, ``entry`` while it has its row."""

    hosted: HostedPartition
    session: DurableSession
    seq: int
    flight: InFlight | None
    entry: QueueEntry | None


class _Inbound(NamedTuple):
    """A QoS 2 message that a client has not released."""

    session: DurableSession
    packet: int
    counter: int


class _Subscribed(NamedTuple):
    """One subscription of a session."""

    hosted: HostedPartition
    session: DurableSession
    subscription: SessionSubscription


def queue_sources(shown: QueryRows) -> dict[str, RowSource]:
    """Return the row sources of queues, in-flight messages and subscriptions."""

    def queue(ask: RowScan) -> Iterator[tuple[Place, Any]]:
        hosted, session = shown.session_of(ask.where["client_id"])
        (after,) = ask.numbers(1)
        ask.wants_payload()
        for session_seq, flight in list((session.made("inflight") or {}).items()):
            if session_seq > after:
                entry = shown.entry(hosted, session, session_seq)
                yield session_seq, _Queued(hosted, session, session_seq, flight, entry)
        for session_seq in range(max(session.push_seq, after + 1), session.next_seq):
            entry = shown.entry(hosted, session, session_seq)
            yield session_seq, _Queued(hosted, session, session_seq, None, entry) if entry is not None else None

    def inflight(ask: RowScan) -> Iterator[tuple[Place, Any]]:
        hosted, session = shown.session_of(ask.where["client_id"])
        (after,) = ask.numbers(1)
        at = 0
        for session_seq, flight in list((session.made("inflight") or {}).items()):
            at += 1
            if at > after:
                yield at, _Queued(hosted, session, session_seq, flight, shown.entry(hosted, session, session_seq))
        for packet, counter in list((session.made("inbound") or {}).items()):
            at += 1
            if at > after:
                yield at, _Inbound(session, packet, counter)

    def subscriptions(ask: RowScan) -> Iterator[tuple[Place, Any]]:
        partition, number, passed = ask.numbers(3)
        for hosted, session in shown.sessions_after(partition, number - 1 if number > 0 else number, ask.now):
            at = (hosted.partition.number, session.number)
            held = session.made("subscriptions") or {}
            if not held:
                yield (*at, 0), None
            for count, subscription in enumerate(list(held.values()), 1):
                if at != (partition, number) or count > passed:
                    yield (*at, count), _Subscribed(hosted, session, subscription)

    return {
        "queue": RowSource(queue, _queue_columns(shown)),
        "inflight": RowSource(inflight, _inflight_columns(shown)),
        "subscriptions": RowSource(subscriptions, _subscription_columns(shown)),
    }


def _queue_columns(shown: QueryRows) -> Columns:
    def expires_in_s(one: _Queued) -> float | None:
        if one.entry is None or one.entry.deadline == NEVER:
            return None
        return max(0, one.entry.deadline - shown.served_ms(one.hosted.partition.number)) / 1000

    def age_s(one: _Queued) -> float | None:
        return shown.age_s(one.hosted, one.entry.arrived) if one.entry is not None and one.entry.arrived else None

    def arrived_at_ms(one: _Queued) -> int | None:
        if one.entry is None or not one.entry.arrived:
            return None
        return shown.utc_of(one.hosted, one.entry.arrived)

    def size(one: _Queued) -> int | None:
        if one.entry is None:
            return None
        return one.hosted.delivery.bodies.size(one.entry.body) if one.entry.body else len(one.entry.payload)

    def payload(one: _Queued) -> bytes | None:
        if one.entry is None:
            return None
        whole = one.hosted.delivery.bodies.read(one.entry.body) if one.entry.body else one.entry.payload
        return whole[:PAYLOAD_HEAD_BYTES]

    return {
        "seq": lambda one: one.seq,
        "topic": _of(lambda entry: entry.topic.decode()),
        "qos": lambda one: one.flight.qos if one.flight is not None else one.entry.qos,
        "retain": _of(lambda entry: entry.retain),
        "bytes": size,
        "state": lambda one: STATES.get(one.flight.state, "sent") if one.flight is not None else "queued",
        "packet": lambda one: one.flight.packet_identifier if one.flight is not None else 0,
        "arrived_at_ms": arrived_at_ms,
        "age_s": age_s,
        "expires_in_s": expires_in_s,
        "origin": _of(lambda entry: shown.origin(entry.origin_kind, entry.origin_a, entry.origin_b)),
        "share": _of(lambda entry: entry.share.decode()),
        "copy": _of(lambda entry: entry.copy),
        "payload": payload,
    }


def _of(read: Any) -> Any:
    return lambda one: read(one.entry) if one.entry is not None else None


def _inflight_columns(shown: QueryRows) -> Columns:
    def out(read: Any) -> Any:
        return lambda one: read(one) if isinstance(one, _Queued) else None

    def origin(one: _Queued | _Inbound) -> str | None:
        if isinstance(one, _Inbound):
            return shown.origin(1, one.session.number, one.counter)
        entry = one.entry
        return shown.origin(entry.origin_kind, entry.origin_a, entry.origin_b) if entry is not None else None

    def age_s(one: _Queued) -> float | None:
        return shown.age_s(one.hosted, one.entry.arrived) if one.entry is not None and one.entry.arrived else None

    return {
        "client_id": lambda one: one.session.client_id,
        "direction": lambda one: "to" if isinstance(one, _Queued) else "from",
        "packet": lambda one: one.packet if isinstance(one, _Inbound) else one.flight.packet_identifier,
        "qos": lambda one: 2 if isinstance(one, _Inbound) else one.flight.qos,
        "state": lambda one: "unreleased" if isinstance(one, _Inbound) else _state(one.flight),
        "seq": out(lambda one: one.seq),
        "topic": out(lambda one: one.entry.topic.decode() if one.entry is not None else None),
        "origin": origin,
        "age_s": out(age_s),
    }


def _state(flight: InFlight) -> str:
    """Return the state of a message with its identifier; one that waits for the window was never sent here."""
    if flight.state == STATE_RELEASED:
        return "released"
    return "sent" if flight.out else "waiting"


def _subscription_columns(shown: QueryRows) -> Columns:
    def since_ms(one: _Subscribed) -> int | None:
        partition = one.hosted.partition
        key = keys.subscription_key(partition.number, one.session.number, one.subscription.topic_filter)
        value = partition.get(key)
        since = unpack(SubscriptionRow, value).since if value is not None else 0
        return shown.utc_of(one.hosted, since) if since else None

    return {
        "client_id": lambda one: one.session.client_id,
        "filter": lambda one: _share_and_filter(one.subscription)[1],
        "qos": lambda one: one.subscription.qos,
        "share": lambda one: _share_and_filter(one.subscription)[0],
        "no_local": lambda one: one.subscription.no_local,
        "retain_as_published": lambda one: one.subscription.retain_as_published,
        "retain_handling": lambda one: one.subscription.retain_handling,
        "identifier": lambda one: one.subscription.identifier,
        "node": lambda one: one.session.edge,
        "durable": lambda _: True,
        "partition": lambda one: one.hosted.partition.number,
        "session": lambda one: one.session.number,
        "partial": lambda one: one.subscription.topic_filter in (one.session.made("partial") or ()),
        "since_ms": since_ms,
    }


def _share_and_filter(subscription: SessionSubscription) -> tuple[str, str]:
    return parse_shared(subscription.topic_filter) or ("", subscription.topic_filter)
