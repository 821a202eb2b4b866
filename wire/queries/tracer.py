"""The traces of one node: operators start and stop them, limits end them, and each stores its events.

| a trace is | its events | end |
|---|---|---|
| running | are added | ``time``; ``events``: the maximum is reached; ``too_much`` in three seconds; ``stopped`` |
| ended | are kept | a new trace needs its place |

The tracer does not know how a tier marks messages and connections. The tier calls ``wants_*`` for clients and topics,
checks its marks on its own paths, and adds events. ``changed`` makes it set its marks again. Sans-IO. Decision:
docs/adr/0170-traces.md.
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from wire.decoding import Unreadable
from wire.messages.cluster_map import ClusterMap
from wire.messages.orders import NodeOrdered, OrderNode, TraceOrder, read_trace
from wire.messages.queries import QueryResult, StartTrace, StopTrace
from wire.messages.query_kinds import lower_role
from wire.messages.running_traces import TOLD_ORIGINS_MAX, RunningTrace
from wire.queries.origins import origin_text
from wire.queries.source import FAILED, OPERATOR, USAGE, Columns, Place, QueryRefused, RowScan, RowSource
from wire.queries.traces import ADDRESS, CLIENT, NO_ORIGIN, ORIGIN, TOPIC, Origin, TraceRefused, judge_of

__all__ = ["RUNNING", "TRACES_MAX", "TRACE_VERBS", "Trace", "TraceEvent", "Tracer"]

TRACE_VERBS = ("trace start", "trace stop")
TRACES_MAX = 16  # of a node, including ended ones until a new trace needs their place
KEPT_MAX = 4_096  # events of a trace, then the oldest are dropped: all traces together use about 32 MiB at most
FAST = 1_000  # events in a second
FAST_SECONDS = 3  # of that rate, after which a trace ends
KNOWN_MAX = 1_024  # matching results that a trace caches
TOPICS_MAX = 1_024  # cached texts of topics
REPORTED_MAX = 16_384  # origins reported by edges
EVERY_NUMBER = 1 << 62
TEXT_MAX = 256  # characters of a client ID, a topic or a detail
RUNNING, STOPPED, BY_TIME, BY_EVENTS, TOO_MUCH = "running", "stopped", "time", "events", "too_much"

_encoder = msgspec.msgpack.Encoder()


class TraceEvent(NamedTuple):
    """A stored event; columns of ``TraceEventRow``, absent ones -1, "" or None."""

    number: int
    at_us: int
    stage: str
    origin: Origin
    client_id: str
    topic: str
    packet: int
    qos: int
    session: int
    seq: int
    partition: int
    reason: str
    detail: str
    payload: bytes
    carried: bool


class Trace:
    """One trace of a node."""

    __slots__ = (
        "_fast",
        "_fast_at",
        "actor",
        "attention",
        "events",
        "judge",
        "kind",
        "known",
        "number",
        "order",
        "payload_bytes",
        "published",
        "second_ends",
        "started_ms",
        "state",
        "until",
    )

    def __init__(self, order: TraceOrder, now: float, started_ms: int, actor: str = "") -> None:
        """Start the trace.

        Raises:
            TraceRefused: Its pattern is malformed.
        """
        self.order = order
        self.actor = actor
        self.kind = order.kind
        self.payload_bytes = order.payload_bytes
        self.judge = judge_of(order.kind, order.pattern)
        self.state = RUNNING
        self.started_ms = started_ms
        self.until = now + order.for_s
        self.events: deque[tuple[Any, ...]] = deque(maxlen=KEPT_MAX)  # fields of Event: made by queries
        self.number = 0  # of the newest event
        self.published: deque[Origin] = deque(maxlen=TOLD_ORIGINS_MAX)  # by matching clients
        self.known: dict[str, bool] = {}  # cached results of ``names``
        self.second_ends = 0
        self.attention = 0  # number of the next event that can end it
        self._fast = 0  # seconds with too many events
        self._fast_at = 0  # number of the event that makes this second too fast

    def names(self, text: str) -> bool:
        """Return whether a text matches the pattern; results of short texts are cached."""
        known = self.known.get(text)
        if known is None:
            known = bool(text) and self.judge(text)
            if len(text) <= TEXT_MAX:
                if len(self.known) >= KNOWN_MAX:
                    self.known.clear()
                self.known[text] = known
        return known

    def is_about(self, client_id: str, address: str, topic: str) -> bool:
        """Return whether a client, address or topic matches; origins are matched separately."""
        kind = self.kind
        if kind == TOPIC:
            return self.names(topic)
        if kind == CLIENT:
            return self.names(client_id)
        return kind == ADDRESS and self.names(address)

    def pace(self, at_us: int) -> None:
        """Start another second, or end the trace if its newest event reached the maximum or the rate is too high."""
        events_max = self.order.events_max
        if at_us >= self.second_ends:
            self.second_ends = at_us + 1_000_000
            self._fast_at = self.number + FAST - 1
        if self.number == self._fast_at:
            self._fast += 1
        if self.number >= events_max:
            self.state = BY_EVENTS
        elif self._fast >= FAST_SECONDS:
            self.state = TOO_MUCH
        self.attention = min(events_max, self._fast_at) if self.number < self._fast_at else events_max


class Tracer:
    """The traces of one node.

    Args:
        node: Its name.
        cluster_map: Names edges in origins.
        changed: Called after traces started or ended: marks must be set again.

    Attributes:
        utc_us: Microseconds since the epoch, by this node's clock.
        running: Traces that take events.
        payload_bytes: Largest payload prefix of the running traces.
        stale: A trace ended by its events, and its marks still exist.
    """

    def __init__(self, node: str, cluster_map: Callable[[], ClusterMap], changed: Callable[[], None]) -> None:
        self._node = node
        self._map = cluster_map
        self._changed = changed
        self._traces: dict[str, Trace] = {}
        self._topics: dict[bytes, str] = {}  # as texts
        self._reported: dict[Origin, None] = {}  # of messages that traced clients published, as reported by edges
        self.utc_us: Callable[[], int] = lambda: 0
        self.running: list[Trace] = []
        self.payload_bytes = 0
        self.stale = False

    # --- operators

    def begin(self, order: TraceOrder, now: float, actor: str = "") -> Trace:
        """Start a trace; a running one of the same name and pattern continues.

        Raises:
            TraceRefused: It cannot start; the state is unchanged.
        """
        trace, known, replaced = self._check_start(order, now, actor)
        if known is not None:
            return known
        self._traces.pop(replaced, None)
        self._traces.pop(order.trace, None)  # the newest are last
        self._traces[order.trace] = trace
        self._count()
        return trace

    def _check_start(self, order: TraceOrder, now: float, actor: str = "") -> tuple[Trace, Trace | None, str]:
        """Return a new trace, the same one if it runs, and the name of an ended one to replace; changes no state.

        Raises:
            TraceRefused: It cannot start.
        """
        self.step(now)
        trace = Trace(order, now, self.utc_us() // 1000, actor)
        known = self._traces.get(order.trace)
        if known is not None and known.state == RUNNING:
            if (known.order.kind, known.order.pattern) == (order.kind, order.pattern):
                return trace, known, ""
            raise TraceRefused(f"a trace {order.trace} of {known.order.kind} {known.order.pattern[:64]!r} runs already")
        if known is not None or len(self._traces) < TRACES_MAX:
            return trace, None, ""
        ended = next((name for name, each in self._traces.items() if each.state != RUNNING), "")
        if not ended:
            raise TraceRefused(f"{TRACES_MAX} traces run: `trace stop` one of them first")
        return trace, None, ended

    def stop(self, name: str, now: float) -> Trace:
        """Stop a trace; one that has ended is unchanged.

        Raises:
            TraceRefused: No trace has this name.
        """
        self.step(now)
        trace = self._traces.get(name)
        if trace is None:
            raise TraceRefused(f"no trace {name!r}: see `trace list`")
        if trace.state == RUNNING:
            trace.state = STOPPED
            self._count()
        return trace

    def asked(self, now: float, role: str, message: StartTrace | StopTrace) -> QueryResult:
        """Process an operator's message; ``role`` is the certificate's."""
        role = lower_role(role, message.role)
        result = QueryResult(message.request, map_epoch=self._map().epoch, at_ms=self.utc_us() // 1000)
        try:
            if lower_role(OPERATOR, role) != OPERATOR:
                raise TraceRefused(f"traces want the role operator; what counts here is {role}")
            if isinstance(message, StopTrace):
                trace = self.stop(message.trace, now)
            else:
                told = StartTrace.__struct_fields__
                values = {name: getattr(message, name) for name in TraceOrder.__struct_fields__ if name in told}
                trace = self.begin(TraceOrder(**values), now, message.actor)
        except TraceRefused as refusal:
            result.error, result.exit_code = str(refusal), FAILED
        else:
            columns = self._trace_columns()
            row = {name: value for name, read in columns.items() if (value := read(trace)) is not None}
            result.rows = [_encoder.encode(row)]
        return result

    def ordered(self, now: float, order: OrderNode) -> NodeOrdered:
        """Process an order that a router has checked and forwarded."""
        try:
            wanted = read_trace(order.subject.encode())
            if order.verb == "trace stop":
                done = self.stop(wanted.trace, now) if not order.dry_run else self._named(wanted.trace)
            elif order.dry_run:
                done, *_ = self._check_start(wanted, now)
            else:
                done = self.begin(wanted, now, order.actor)
        except (TraceRefused, Unreadable) as refusal:
            return NodeOrdered(order.request, error=str(refusal)[:500])
        return NodeOrdered(order.request, done.number, [f"{wanted.trace}: {done.state}"])

    def _named(self, name: str) -> Trace:
        trace = self._traces.get(name)
        if trace is None:
            raise TraceRefused(f"no trace {name!r}: see `trace list`")
        return trace

    # --- other nodes

    def to_tell(self, now: float) -> list[RunningTrace]:
        """Return the running traces for a node that starts, or that becomes primary of a partition."""
        return [
            RunningTrace(
                trace.order,
                max(1, int(1_000 * (trace.until - now))),
                trace.started_ms,
                trace.actor,
                list(trace.published),
            )
            for trace in self.running
        ]

    def heard(self, now: float, told: RunningTrace) -> None:
        """Start a cluster-wide trace, or add its origins; a trace that ended here does not start again."""
        self.step(now)
        order = told.running
        trace = self._traces.get(order.trace)
        if trace is None and order.everywhere:
            try:
                trace = self.begin(order, now, told.actor)
            except TraceRefused:
                return
            trace.started_ms, trace.until = told.started_ms, now + told.left_ms / 1_000
        if trace is None or trace.state != RUNNING or (trace.kind, trace.order.pattern) != (order.kind, order.pattern):
            return
        for origin in told.origins:
            self._reported.pop(origin, None)
            self._reported[origin] = None
        while len(self._reported) > REPORTED_MAX:
            del self._reported[next(iter(self._reported))]

    # --- time

    def step(self, now: float) -> None:
        """End the traces whose time has expired."""
        expired = [trace for trace in self.running if now >= trace.until]
        for trace in expired:
            trace.state = BY_TIME
        if expired or self.stale:
            self._count()

    def next_deadline(self) -> float:
        """Return when ``step`` has work; infinity without running traces."""
        return 0.0 if self.stale else min((trace.until for trace in self.running), default=float("inf"))

    def _count(self) -> None:
        self.stale = False
        self.running = [trace for trace in self._traces.values() if trace.state == RUNNING]
        self.payload_bytes = max((trace.order.payload_bytes for trace in self.running), default=0)
        if not self.running:
            self._topics.clear()
            self._reported.clear()
        self._changed()

    # --- matching

    def of_kind(self, *kinds: str) -> list[Trace]:
        """Return the running traces of some kinds."""
        return [trace for trace in self.running if trace.order.kind in kinds]

    def wants_client(self, client_id: str, address: str) -> bool:
        """Return whether a connection must be marked."""
        return any(trace.is_about(client_id, address, "") for trace in self.of_kind(CLIENT, ADDRESS))

    def wants_topic(self, topic: str) -> bool:
        """Return whether a topic's messages must be marked."""
        return any(trace.names(topic) for trace in self.of_kind(TOPIC))

    def wants_origin(self, origin: Origin) -> bool:
        """Return whether a message is traced by its origin, or by its publisher as reported by an edge."""
        if origin in self._reported:
            return True
        found = self.of_kind(ORIGIN)
        return bool(found) and any(trace.names(origin_text(*origin, self._map())) for trace in found)

    def text(self, topic: bytes) -> str:
        """Return a topic as text; short ones are cached."""
        text = self._topics.get(topic)
        if text is None:
            text = topic.decode("utf-8", "replace")
            if len(topic) <= TEXT_MAX:
                if len(self._topics) >= TOPICS_MAX:
                    self._topics.clear()
                self._topics[topic] = text
        return text

    def note(
        self,
        stage: str,
        origin: Origin = NO_ORIGIN,
        client_id: str = "",
        address: str = "",
        topic: str = "",
        packet: int = -1,
        qos: int = -1,
        session: int = -1,
        seq: int = -1,
        partition: int = -1,
        reason: str = "",
        detail: str = "",
        payload: bytes = b"",
        marked: bool = False,
    ) -> None:
        """Add an event to the matching traces.

        Args:
            stage: As in ``TraceEventRow``, like most below.
            origin: Of the message.
            client_id: Client of the message or copy.
            address: That client's.
            topic: Of the message.
            packet: Packet identifier.
            qos: Of the message or copy.
            session: Number of a stored session.
            seq: Entry of its queue.
            partition: Its number.
            reason: Of a refusal or a drop.
            detail: A few words.
            payload: Its first bytes.
            marked: The message has a mark: it also goes to traces of clients, which may match on another node.
        """
        at_us = self.utc_us()
        short_id, short_topic = client_id, topic
        if len(client_id) + len(topic) + len(detail) > TEXT_MAX:
            short_id, short_topic, detail = client_id[:TEXT_MAX], topic[:TEXT_MAX], detail[:TEXT_MAX]
        ended = False
        for trace in self.running:
            kind = trace.kind
            text = topic if kind == TOPIC else client_id if kind == CLIENT else address
            if kind == ORIGIN:
                text = origin_text(*origin, self._map()) if origin != NO_ORIGIN else ""
            about = trace.known.get(text)
            if about is None:
                about = trace.names(text)
            carried = False
            if not about:
                if not marked or kind in (TOPIC, ORIGIN):
                    continue
                carried = True
            elif stage == "received" and qos > 0 and kind in (CLIENT, ADDRESS):
                trace.published.append(origin)
            kept = payload[: trace.payload_bytes] if payload else payload
            trace.number = number = trace.number + 1
            # fmt: off
            trace.events.append((
                number, at_us, stage, origin, short_id, short_topic, packet, qos, session, seq, partition, reason,
                detail, kept, carried,
            ))
            # fmt: on
            if number >= trace.attention or at_us >= trace.second_ends:
                trace.pace(at_us)
                ended = ended or trace.state != RUNNING
        if ended:  # its marks are updated in ``step``: a message may be half processed here
            self.running = [trace for trace in self.running if trace.state == RUNNING]
            self.stale = True

    # --- queries

    def sources(self) -> dict[str, RowSource]:
        """Return the row sources of traces and of the events of one."""
        return {
            "traces": RowSource(self._walk_traces, self._trace_columns(), lambda: len(self._traces)),
            "trace": RowSource(self._walk_events, self._event_columns(), newest=self._newest),
        }

    def _walk_traces(self, ask: RowScan) -> Iterator[tuple[Place, Any]]:
        (after,) = ask.numbers(1)
        for place, trace in enumerate(list(self._traces.values()), 1):
            if place > after:
                yield place, trace

    def _trace_of(self, ask: RowScan) -> Trace:
        trace = self._traces.get(ask.where["trace"])
        if trace is None:
            raise QueryRefused(f"{self._node} has no trace {ask.where['trace'][:64]!r}: see `trace list`", USAGE)
        return trace

    def _newest(self, ask: RowScan) -> int:
        trace = self._trace_of(ask)
        return trace.number if trace.state == RUNNING else EVERY_NUMBER  # a waiting query then sees the end

    def _walk_events(self, ask: RowScan) -> Iterator[tuple[Place, Any]]:
        trace = self._trace_of(ask)
        (after,) = ask.numbers(1)
        events = trace.events
        skipped = max(0, after - events[0][0] + 1) if events else 0
        with_payload = ask.may_read_payloads()
        for fields in islice(events, skipped, None):
            event = TraceEvent(*fields)
            yield event.number, (trace, event if with_payload else event._replace(payload=b""))

    def _trace_columns(self) -> Columns:
        return {
            "trace": lambda trace: trace.order.trace,
            "node": lambda _: self._node,
            "kind": lambda trace: trace.order.kind,
            "pattern": lambda trace: trace.order.pattern,
            "state": lambda trace: trace.state,
            "started_at_ms": lambda trace: trace.started_ms,
            "until_ms": lambda trace: trace.started_ms + 1000 * trace.order.for_s,
            "events": lambda trace: trace.number,
            "events_max": lambda trace: trace.order.events_max,
            "payload_bytes": lambda trace: trace.order.payload_bytes,
            "actor": lambda trace: trace.actor or None,
        }

    def _event_columns(self) -> Columns:
        def origin(pair: tuple[Trace, TraceEvent]) -> str | None:
            return origin_text(*pair[1].origin, self._map()) if pair[1].origin != NO_ORIGIN else None

        def number(name: str) -> Callable[[tuple[Trace, TraceEvent]], object]:
            return lambda pair: found if (found := getattr(pair[1], name)) >= 0 else None

        def text(name: str) -> Callable[[tuple[Trace, TraceEvent]], object]:
            return lambda pair: getattr(pair[1], name) or None

        return {
            "trace": lambda pair: pair[0].order.trace,
            "number": lambda pair: pair[1].number,
            "at_us": lambda pair: pair[1].at_us,
            "node": lambda _: self._node,
            "stage": lambda pair: pair[1].stage,
            "origin": origin,
            **{name: text(name) for name in ("client_id", "topic")},
            **{name: number(name) for name in ("packet", "qos", "session", "seq", "partition")},
            **{name: text(name) for name in ("reason", "detail", "payload", "carried")},
        }
