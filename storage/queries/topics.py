"""Retained messages, the durable subscriptions that match a topic, and shared groups of stored sessions."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from mqtt.data_types import encode_varint
from mqtt.errors import MqttError
from mqtt.limits import Limits
from mqtt.properties import PropertyId, decode_properties
from mqtt.reasons import PacketType
from mqtt.topics import matches, parse_shared, validate_topic_filter
from storage.hosting.hosted_partition import HostedPartition
from storage.queries.query_rows import QueryRows
from storage.state import keys
from storage.state.durable_sessions import ENDING, DurableSession
from storage.state.rows import NEVER, RetainedRow, unpack
from wire.messages.sessions import SessionSubscription
from wire.messages.topic_rows import ShareMemberRow
from wire.queries.clock_skew import skew
from wire.queries.source import USAGE, Columns, Place, QueryRefused, RowScan, RowSource

__all__ = ["topic_sources"]

TOPICS_AT_ONCE = 64  # of the index, in one step
NEAR_MAX = 20
MEMBERS_MAX = 100
LIMITS = Limits(control_characters=True)  # an edge has validated the client's properties
PAYLOAD_BYTES_MAX = 200 * 1024  # of one retained message, below the bound of a reply


class _Retained:
    """A retained message; its row is read on first access."""

    __slots__ = ("_row", "hosted", "known", "topic")

    def __init__(self, hosted: HostedPartition, topic: str, known: tuple[int, int, int, str]) -> None:
        self.hosted = hosted
        self.topic = topic
        self.known = known  # bytes, deadline, body, user
        self._row: RetainedRow | None = None

    @property
    def row(self) -> RetainedRow | None:
        """Return its row, None if it is gone."""
        if self._row is None:
            partition = self.hosted.partition
            value = partition.get(keys.retained_key(partition.number, self.topic))
            self._row = unpack(RetainedRow, value) if value is not None else None
        return self._row


class _Match(NamedTuple):
    """A subscription that matches a topic; without a session a filter that nearly matches."""

    hosted: HostedPartition
    session: DurableSession | None
    subscription: SessionSubscription | None
    filter: str
    why: str
    asked_qos: int = 1
    turn: bool | None = None


def topic_sources(shown: QueryRows) -> dict[str, RowSource]:
    """Return the row sources of retained messages, matches and shared groups."""

    def retained_total() -> int:
        return sum(len(hosted.retained) for hosted in shown.from_partition(0))

    return {
        "retained": RowSource(lambda ask: _retained(shown, ask), _retained_columns(shown), retained_total),
        "matches": RowSource(lambda ask: _matches(shown, ask), _match_columns()),
        "shares": RowSource(lambda ask: _shares(shown, ask), _share_columns(shown)),
    }


# --- retained messages


def _retained(shown: QueryRows, ask: RowScan) -> Iterator[tuple[Place, Any]]:
    number, after = ask.number_and_text()
    if ask.wants_payload() and not ask.where.get("topic"):
        raise QueryRefused("payloads are shown of one topic at a time: name it", USAGE)
    wanted = ask.where.get("matches", "")
    if wanted:
        try:
            validate_topic_filter(wanted)
        except MqttError as error:
            raise QueryRefused(f"{wanted[:64]!r} is no topic filter: {error}", USAGE) from None
    for hosted in shown.from_partition(max(0, number)):
        found = hosted.partition.number
        behind = after if found == number else None
        while True:
            topics, behind = _some(hosted, wanted, behind)
            for topic, known in topics:
                yield (found, topic), _Retained(hosted, topic, known) if known is not None else None
            if behind is None:
                break


def _some(
    hosted: HostedPartition, wanted: str, behind: str | None
) -> tuple[list[tuple[str, tuple[int, int, int, str] | None]], str | None]:
    """Return some retained topics after a cursor, and the next cursor; None at the end."""
    if wanted:
        page = hosted.retained.page(wanted, behind, TOPICS_AT_ONCE)
        found: list[Any] = list(page.found)
        if page.after is not None and (not found or found[-1][0] != page.after):
            found.append((page.after, None))  # visited, without a row
        return found, page.after
    topics, after = hosted.retained.topics(behind, TOPICS_AT_ONCE)
    return [(topic, hosted.retained.known(topic)) for topic in topics], after


def _retained_columns(shown: QueryRows) -> Columns:
    def expires_in_s(one: _Retained) -> float | None:
        deadline = one.known[1]
        if deadline == NEVER:
            return None
        return max(0, deadline - shown.served_ms(one.hosted.partition.number)) / 1000

    def origin(one: _Retained) -> str | None:
        row = one.row
        return shown.origin(row.origin_kind, row.origin_a, row.origin_b) if row is not None else None

    def age_s(one: _Retained) -> float | None:
        if one.row is None or not one.row.arrived:
            return None
        return shown.age_s(one.hosted, one.row.arrived)

    def payload(one: _Retained) -> bytes | None:
        row = one.row
        if row is None:
            return None
        whole = one.hosted.delivery.bodies.read(row.body) if row.body else row.payload
        return whole[:PAYLOAD_BYTES_MAX]

    return {
        "topic": lambda one: one.topic,
        "bytes": lambda one: one.known[0],
        "qos": lambda one: one.row.qos if one.row is not None else None,
        "age_s": age_s,
        "expires_in_s": expires_in_s,
        "publisher": lambda one: one.known[3],
        "partition": lambda one: one.hosted.partition.number,
        "storage": lambda _: shown.node,
        "origin": origin,
        "content_type": _content_type,
        "payload": payload,
    }


def _content_type(one: _Retained) -> str | None:
    """Return the Content Type that the publisher gave [MQTT-3.3.2-20]."""
    if one.row is None or not one.row.properties:
        return None
    block = one.row.properties
    try:
        found, _ = decode_properties(encode_varint(len(block)) + block, 0, PacketType.PUBLISH, LIMITS)
    except MqttError:
        return None
    value = found.get(PropertyId.CONTENT_TYPE)
    return value if isinstance(value, str) else None


# --- matches


def _matches(shown: QueryRows, ask: RowScan) -> Iterator[tuple[Place, Any]]:
    topic = ask.where["topic"]
    if not topic or set("+#\0") & set(topic):
        raise QueryRefused(f"{topic[:64]!r} is no topic name: no + and no # may be in it", USAGE)
    number, after = ask.numbers(2)
    only = ask.where.get("partition", "")
    for hosted in shown.from_partition(max(0, number)):
        found = hosted.partition.number
        if only and only != str(found):
            continue
        for at, match in enumerate(_of_partition(hosted, topic, ask.where), 1):
            if found != number or at > after:
                yield (found, at), match


def _of_partition(hosted: HostedPartition, topic: str, where: Mapping[str, str]) -> Iterator[_Match]:
    partition, qos = hosted.partition, _asked_qos(where)
    for session, subscription in list(partition.trie.match(topic)):
        yield _Match(
            hosted, session, subscription, subscription.topic_filter, _why(hosted, session, subscription, where), qos
        )
    for share, members in hosted.delivery.targets.groups.shown():
        text = share.decode()
        if matches(text.split("/", 1)[1], topic):
            for place, session in enumerate(members):
                subscription = session.subscriptions.get("$share/" + text)
                if subscription is not None:
                    why = _why(hosted, session, subscription, where)
                    yield _Match(hosted, session, subscription, subscription.topic_filter, why, qos, place == 0)
    if where.get("near"):
        for name in _near(hosted, topic):
            yield _Match(hosted, None, None, name, "level", qos)


def _near(hosted: HostedPartition, topic: str) -> list[str]:
    """Return filters that miss a topic by one level: longer, shorter, or with one different level."""
    levels = topic.split("/")
    found: list[str] = []
    for name in hosted.partition.trie.filters():
        parts = name.split("/")
        near = len(parts) == len(levels) and sum(a not in (b, "+") for a, b in zip(parts, levels, strict=True)) == 1
        if (near or parts[:-1] == levels or levels[:-1] == parts) and not matches(name, topic):
            found.append(name)
            if len(found) >= NEAR_MAX:
                break
    return found


def _why(
    hosted: HostedPartition, session: DurableSession, subscription: SessionSubscription, where: Mapping[str, str]
) -> str:
    """Return the reason why a session does not get a message, "" if it does."""
    settings = hosted.partition.settings
    if session.deadline == ENDING:
        return "ending"
    if subscription.no_local and where.get("from") == session.client_id:
        return "no_local"
    if min(subscription.qos, _asked_qos(where)) == 0:
        return "" if session.edge else "qos0_away"
    if session.queued >= session.queue_most(settings.queue_messages_max, settings.queue_bytes_max)[0]:
        return "queue_full"
    return ""


def _asked_qos(where: Mapping[str, str]) -> int:
    return int(where["qos"]) if where.get("qos", "").isdecimal() else 1


def _match_columns() -> Columns:
    def of(read: Any) -> Any:
        return lambda one: read(one) if one.session is not None else None

    return {
        "client_id": of(lambda one: one.session.client_id),
        "filter": lambda one: (parse_shared(one.filter) or ("", one.filter))[1],
        "qos": of(lambda one: one.subscription.qos),
        "effective_qos": of(lambda one: min(one.subscription.qos, one.asked_qos)),
        "share": lambda one: (parse_shared(one.filter) or ("", ""))[0],
        "turn": lambda one: one.turn,
        "no_local": of(lambda one: one.subscription.no_local),
        "retain_as_published": of(lambda one: one.subscription.retain_as_published),
        "retain_handling": of(lambda one: one.subscription.retain_handling),
        "identifier": of(lambda one: one.subscription.identifier),
        "online": of(lambda one: bool(one.session.edge)),
        "node": of(lambda one: one.session.edge),
        "durable": lambda _: True,
        "partition": lambda one: one.hosted.partition.number,
        "session": of(lambda one: one.session.number),
        "queued": of(lambda one: one.session.queued),
        "window": of(lambda one: one.session.window),
        "inflight": of(lambda one: one.session.out),
        "why": lambda one: one.why,
    }


# --- shared groups


def _shares(shown: QueryRows, ask: RowScan) -> Iterator[tuple[Place, Any]]:
    number, after = ask.number_and_text()
    for hosted in shown.from_partition(max(0, number)):
        found = hosted.partition.number
        for share, members in sorted(hosted.delivery.targets.groups.shown()):
            text = share.decode()
            if found != number or text > after:
                yield (found, text), (hosted, text, members, ask.where)


def _share_columns(shown: QueryRows) -> Columns:
    def oldest_s(one: Any) -> float | None:
        hosted, _, members, _ = one
        ages = [
            age
            for session in members[:MEMBERS_MAX]
            if session.queued and (age := shown.age_s(hosted, shown.head_arrival(hosted, session))) is not None
        ]
        return max(ages, default=None)

    def who(one: Any) -> list[ShareMemberRow] | None:
        hosted, text, members, where = one
        if f"{where.get('group')}/{where.get('filter')}" != text:
            return None
        return [
            ShareMemberRow(
                session.client_id,
                bool(session.edge),
                session.queued,
                shown.age_s(hosted, shown.head_arrival(hosted, session)) if session.queued else None,
                hosted.partition.number,
                session.edge,
            )
            for session in members[:MEMBERS_MAX]
        ]

    return {
        "group": lambda one: one[1].split("/", 1)[0],
        "filter": lambda one: one[1].split("/", 1)[1],
        "members": lambda one: len(one[2]),
        "online": lambda one: sum(1 for session in one[2] if session.edge),
        "queued": lambda one: sum(session.queued for session in one[2]),
        "queued_most": lambda one: max((session.queued for session in one[2]), default=0),
        "skew": lambda one: skew([session.queued for session in one[2]]),
        "delivered": lambda one: one[0].delivery.targets.groups.counts(one[1].encode())[0],
        "redispatched": lambda one: one[0].delivery.targets.groups.counts(one[1].encode())[1],
        "oldest_s": oldest_s,
        "partition": lambda one: one[0].partition.number,
        "node": lambda _: shown.node,
        "who": who,
    }
