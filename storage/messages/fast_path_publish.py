"""Fast path of messages: from a frame's bytes to rows, pushes and replies, without an object for each message.

It processes QoS 1 messages with one receiver here that can be sent at once: no RETAIN, no group, no repeat, queue and
window not full. ``PartitionDelivery.publish`` processes all others and has all rules. Both paths give the same result
(``tests/storage/test_fast_path.py`` compares them). ``wire/messages/batches.py`` and ``storage/state/rows.py``
define the record layouts.

A ``FastPathPublish`` is one partition, open for the messages of one frame. Compiled; ``fast_path_publish.pxd`` has the
C types.
"""

from collections.abc import Callable

import cython

from storage.messages.origins import Origins, edge_sender
from storage.messages.publishers import Publishers
from storage.state.durable_sessions import DurableSession
from storage.state.partition import Partition
from storage.state.session_window import InFlight, SessionWindow
from wire.messages.batches import PublishMessage, decode_publish
from wire.messages.frames import FrameKind
from wire.messages.octets import Octets
from wire.messages.overlapping import identifiers_of

if not cython.compiled:
    from storage.state.session_window import assign_place, is_caught_up, is_window_open
    from wire.messages.octets import add8, add16, add32, add64, add_bytes, add_span, get16, get32, get64, take_all

__all__ = ["FastPathPublish", "PublishHandler"]

ROUTES_MAX = 4_096  # topics of a partition with a cached receiver
PUSHES_MAX = 262_144  # bytes in one output: a frame holds several

if not cython.compiled:  # compiled, these are C constants: fast_path_publish.pxd
    RUN, MESSAGE = 0, 1
    RUN_HEAD, MESSAGE_HEAD, PLACE = 9, 60, 6
    FLAGS_AT, KIND_AT, TAG_AT, ORIGIN_A_AT, ORIGIN_B_AT, SESSION_AT, OWNER_EPOCH_AT = 2, 3, 4, 12, 20, 28, 36
    EXPIRY_AT, PLACES_AT, TOPIC_AT, PROPERTIES_AT, PAYLOAD_AT = 44, 48, 50, 52, 56
    SHARE_FLAG, OWNER_FLAG, TRACED_FLAG = 0x08, 0x10, 0x20
    ENTRY_OVERHEAD = 64
    SENT = 1
    ENDING = 1  # storage/state/durable_sessions.py
    ARRIVED_FLAG = 0x40
    NO_EXPIRY = 0xFFFFFFFF
    QUEUE_KIND = 113  # b"q"


class FastPathRoute:
    """Receiver of one topic in a partition; session is None if messages of that topic take the slow path."""

    def __init__(self) -> None:
        self.session: DurableSession | None = None
        self.identifiers = b""
        self.traced = False  # a trace includes its client


SLOW_PATH = FastPathRoute()
NO_OCTETS = Octets()  # of a fast path that is not open


class FastPathPublish:
    """Fast path of one partition's messages.

    Attributes:
        routes: Topic -> its receiver; cleared whenever a subscription of the partition changes.
    """

    def __init__(self, partition: Partition, origins: Origins, publishers: Publishers) -> None:
        self.number = partition.number
        self.partition = partition
        self.origins = origins
        self.publishers = publishers
        self.routes: dict[bytes, FastPathRoute] = {}
        settings = partition.settings
        self.queue_messages_max = settings.queue_messages_max
        self.queue_bytes_max = settings.queue_bytes_max
        self.payload_max = settings.piece_bytes  # larger ones are stored in pieces
        self.life_ms = settings.message_expiry_max_s * 1000
        self.pushes = NO_OCTETS
        self.answers = NO_OCTETS
        self.node = self.push_node = ""
        self.since = self.epoch = 0
        self.served_ms = 0
        self.building = 0  # operation of the messages
        self.writes = partition.writes
        self.newest = publishers.newest
        self.first = self.counter = 0  # counters of the edge: highest before the frame, and now
        self.now = 0.0

    def forget_routes(self) -> None:
        """Clear the cached receivers after a subscription changed."""
        self.routes.clear()


class PublishHandler:
    """Processes PUBLISH frames of edges.

    Args:
        get_fast_path: Returns the fast path of a partition that accepts messages now, else None.
        others: Processes a slow-path message: a record, one of its partitions, the edge's epoch of that partition.
        runs: Called for each record that is addressed to edges.

    Attributes:
        left: Remaining fan-out budget in copies; ``others`` reduces it by its copies.
    """

    def __init__(
        self,
        get_fast_path: Callable[[int], FastPathPublish | None],
        others: Callable[[PublishMessage, int, int], None],
        runs: Callable[[], None],
    ) -> None:
        self.get_fast_path = get_fast_path
        self.others = others
        self.runs = runs
        self.left = 1 << 60
        self.fast_paths: dict[int, FastPathPublish | None] = {}
        self.pool: list[Octets] = []
        self.scratch = Octets()
        self.node = ""
        self.sender = 0
        self.now = 0.0
        self.lease_s = 0.0

    def take(
        self, payload: bytes, begin: cython.Py_ssize_t, node: str, incarnation: int, now: float, lease_s: float
    ) -> int:
        """Process the messages of a frame, at least the first; return the offset of the first unprocessed one.

        Args:
            payload: Of the frame.
            begin: Offset of the first unprocessed message of an earlier call, which validated the frame. Otherwise 0.
            node: The edge that sent it.
            incarnation: The edge's.
            now: Monotonic seconds.
            lease_s: The cluster's.

        Raises:
            Unreadable: The payload ends inside a record, or a record is invalid; no message was processed.
        """
        data: cython.p_uchar = payload
        at: cython.Py_ssize_t = 0
        end: cython.Py_ssize_t = len(payload)
        stop: cython.Py_ssize_t
        while at < end and begin == 0:
            stop = record_end(data, at, end)
            if stop < 0 or (data[at] == MESSAGE and not is_simple(data, at)):
                decode_publish(payload[at : stop if stop >= 0 else end])  # raises Unreadable if it is invalid
            at = stop if stop >= 0 else end
        self.node, self.now, self.lease_s = node, now, lease_s
        self.sender = edge_sender(node, incarnation)
        at = begin
        while at < end:
            stop = record_end(data, at, end)
            if data[at] == RUN:
                self.runs()
            else:
                process_record(self, payload, at, stop)
            at = stop
            self.left -= 1
            if self.left <= 0:
                break
        for fast_path in self.fast_paths.values():
            if fast_path is not None:
                close_fast_path(self, fast_path)
        self.fast_paths.clear()
        return int(at)


def open_fast_path(handler: PublishHandler, fast_path: FastPathPublish) -> None:
    """Prepare a partition's fast path for the messages of a frame."""
    partition = fast_path.partition
    fast_path.since = partition.since
    fast_path.epoch = partition.epoch
    fast_path.served_ms = partition.served_ms
    fast_path.building = partition.building
    fast_path.writes = partition.writes
    fast_path.newest = fast_path.publishers.newest
    fast_path.node = handler.node
    fast_path.first = fast_path.counter = fast_path.origins.highest(handler.sender)
    fast_path.now = handler.now
    fast_path.pushes = handler.pool.pop() if handler.pool else Octets()
    fast_path.answers = handler.pool.pop() if handler.pool else Octets()


def close_fast_path(handler: PublishHandler, fast_path: FastPathPublish) -> None:
    """Emit the output of one partition, and record the edge's highest counter."""
    partition = fast_path.partition
    pushes: Octets = fast_path.pushes
    answers: Octets = fast_path.answers
    if fast_path.counter > fast_path.first:
        fast_path.origins.remember_edge(handler.sender, fast_path.counter)
        send_pushes(fast_path)
        partition.emit(fast_path.node, FrameKind.PUBLISH_ACK, take_all(answers))
    handler.pool.append(pushes)
    handler.pool.append(answers)
    fast_path.pushes = NO_OCTETS
    fast_path.answers = NO_OCTETS


def send_pushes(fast_path: FastPathPublish) -> cython.int:
    """Emit the buffered pushes to their node."""
    pushes: Octets = fast_path.pushes
    if pushes.used:
        fast_path.partition.emit(fast_path.push_node, FrameKind.PUSH, take_all(pushes))
    return 0


def find_route(fast_path: FastPathPublish, topic: bytes) -> FastPathRoute:
    """Return the receiver of a topic, and cache it."""
    route: FastPathRoute = SLOW_PATH
    matches = fast_path.partition.trie.match(topic.decode())
    if len(matches) == 1:
        session, subscription = matches[0]
        if subscription.qos and not subscription.no_local:
            route = FastPathRoute()
            tracing = fast_path.partition.tracing
            route.traced = tracing is not None and tracing.is_traced_session(session)
            route.session = session
            route.identifiers = identifiers_of((subscription,))
    if len(fast_path.routes) >= ROUTES_MAX:
        fast_path.routes.clear()
    fast_path.routes[topic] = route
    return route


def process_message(
    handler: PublishHandler,
    fast_path: FastPathPublish,
    data: cython.p_uchar,
    at: cython.Py_ssize_t,
    body_at: cython.Py_ssize_t,
) -> cython.bint:
    """Process a message in one partition; return False, without effect, if it needs the slow path.

    Args:
        handler: Handler of its frame.
        fast_path: Open fast path of the partition.
        data: Bytes of the frame.
        at: Offset of the record.
        body_at: Offset of its topic.
    """
    publisher: cython.ulonglong = get64(data, at + SESSION_AT)
    owner_epoch: cython.ulonglong = get64(data, at + OWNER_EPOCH_AT)
    tag: cython.ulonglong = get64(data, at + TAG_AT)
    topic_bytes: cython.Py_ssize_t = get16(data, at + TOPIC_AT)
    property_bytes: cython.Py_ssize_t = get32(data, at + PROPERTIES_AT)
    payload_bytes: cython.Py_ssize_t = get32(data, at + PAYLOAD_AT)
    if tag <= fast_path.counter or payload_bytes > fast_path.payload_max:
        return False
    if publisher and not observe_publisher(handler, fast_path, publisher, owner_epoch):
        return False
    topic: bytes = data[body_at : body_at + topic_bytes]
    route: FastPathRoute | None = fast_path.routes.get(topic)
    if route is None:
        route = find_route(fast_path, topic)
    owner: DurableSession | None = route.session
    if owner is None:
        return False
    session: SessionWindow = owner
    size: cython.Py_ssize_t = topic_bytes + property_bytes + payload_bytes + len(route.identifiers) + ENTRY_OVERHEAD
    if not can_send_at_once(fast_path, session, size):
        return False
    fast_path.counter = tag
    expiry_s: cython.ulong = get32(data, at + EXPIRY_AT)
    deadline: cython.ulonglong = 0
    if expiry_s != NO_EXPIRY:
        deadline = fast_path.served_ms + (expiry_s * 1000 if expiry_s else 1)
    if fast_path.life_ms and (deadline == 0 or deadline > fast_path.served_ms + fast_path.life_ms):
        deadline = fast_path.served_ms + fast_path.life_ms
    if deadline:
        expiry_s = (deadline - fast_path.served_ms + 999) // 1000
    if not session.aged:
        fast_path.partition.ages.note(session, fast_path.served_ms if fast_path.served_ms else 1)
    session_seq: cython.ulonglong = session.next_seq
    flight: InFlight = assign_place(session, size)
    identifier: cython.uint = flight.packet_identifier
    if route.traced or data[at + FLAGS_AT] & TRACED_FLAG:
        flight.traced = trace(fast_path, owner, session_seq, topic, identifier, data, at)
    write_row(handler.scratch, fast_path, session, session_seq, route, data, at, body_at, identifier, deadline)
    write_push(fast_path, session, session_seq, route, data, at, body_at, identifier, expiry_s, flight.traced)
    session.behind = fast_path.building
    add64(fast_path.answers, tag)
    add16(fast_path.answers, fast_path.number)
    add8(fast_path.answers, 0)
    return True


def trace(
    fast_path: FastPathPublish,
    session: DurableSession,
    session_seq: cython.ulonglong,
    topic: bytes,
    identifier: cython.uint,
    data: cython.p_uchar,
    at: cython.Py_ssize_t,
) -> cython.bint:
    """Trace a message that is queued and sent at once; return False if it is not traced."""
    tracing = fast_path.partition.tracing
    if tracing is None or not tracing.active:
        return False
    origin = (0, get64(data, at + ORIGIN_A_AT), get64(data, at + ORIGIN_B_AT))
    marked: cython.bint = data[at + FLAGS_AT] & TRACED_FLAG != 0
    tracing.taken(fast_path.number, session, session_seq, topic, origin, identifier, marked)
    if marked:
        fast_path.partition.trace_commit(topic, origin)
    return True


def observe_publisher(
    handler: PublishHandler, fast_path: FastPathPublish, publisher: cython.ulonglong, owner_epoch: cython.ulonglong
) -> cython.bint:
    """Record that a session publishes; return False if a newer connection of it published before."""
    known: tuple[int, float] | None = fast_path.newest.get(publisher)
    if known is not None and known[0] == owner_epoch and known[1] == fast_path.now:
        return True
    superseded = fast_path.publishers.observe(publisher, owner_epoch, fast_path.now, handler.lease_s)
    fast_path.newest = fast_path.publishers.newest
    return not superseded


def can_send_at_once(fast_path: FastPathPublish, session: SessionWindow, size: cython.Py_ssize_t) -> cython.bint:
    """Return whether a message of this size can be sent to a session's connection at once."""
    if session.deadline == ENDING or not is_caught_up(session) or not is_window_open(session):
        return False
    messages: cython.Py_ssize_t = fast_path.queue_messages_max
    octets: cython.Py_ssize_t = fast_path.queue_bytes_max
    if session.queue_bounds is not None:
        messages, octets = session.queue_most(messages, octets)
    queued: cython.Py_ssize_t = 0 if session._inflight is None else len(session._inflight)
    return queued < messages and session.queue_bytes + size <= octets


def write_row(
    scratch: Octets,
    fast_path: FastPathPublish,
    session: SessionWindow,
    session_seq: cython.ulonglong,
    route: FastPathRoute,
    data: cython.p_uchar,
    at: cython.Py_ssize_t,
    body_at: cython.Py_ssize_t,
    identifier: cython.uint,
    deadline: cython.ulonglong,
) -> cython.int:
    """Write the queue row with the operation that is being built."""
    topic_bytes: cython.Py_ssize_t = get16(data, at + TOPIC_AT)
    property_bytes: cython.Py_ssize_t = get32(data, at + PROPERTIES_AT)
    add16(scratch, fast_path.number)
    add8(scratch, QUEUE_KIND)
    add64(scratch, session.number)
    add64(scratch, session_seq)
    key: bytes = take_all(scratch)
    add8(scratch, 1 | ARRIVED_FLAG)
    add8(scratch, SENT)
    add16(scratch, identifier)
    add64(scratch, deadline)
    add8(scratch, 0)
    add64(scratch, get64(data, at + ORIGIN_A_AT))
    add64(scratch, get64(data, at + ORIGIN_B_AT))
    add64(scratch, 0)
    add16(scratch, topic_bytes)
    add32(scratch, property_bytes + len(route.identifiers))
    add_span(scratch, data, body_at, topic_bytes + property_bytes)
    add_bytes(scratch, route.identifiers)
    arrived: cython.ulonglong = fast_path.served_ms if fast_path.served_ms else 1
    add16(scratch, arrived >> 32)
    add32(scratch, arrived & 0xFFFFFFFF)
    add_span(scratch, data, body_at + topic_bytes + property_bytes, get32(data, at + PAYLOAD_AT))
    fast_path.writes[key] = take_all(scratch)
    return 0


def write_push(
    fast_path: FastPathPublish,
    session: SessionWindow,
    session_seq: cython.ulonglong,
    route: FastPathRoute,
    data: cython.p_uchar,
    at: cython.Py_ssize_t,
    body_at: cython.Py_ssize_t,
    identifier: cython.uint,
    expiry_s: cython.ulong,
    traced: cython.bint,
) -> cython.int:
    """Append the record of a push to the buffer of its node."""
    pushes: Octets = fast_path.pushes
    if session.edge != fast_path.push_node or pushes.used > PUSHES_MAX:
        send_pushes(fast_path)
        fast_path.push_node = session.edge
    topic_bytes: cython.Py_ssize_t = get16(data, at + TOPIC_AT)
    property_bytes: cython.Py_ssize_t = get32(data, at + PROPERTIES_AT)
    payload_bytes: cython.Py_ssize_t = get32(data, at + PAYLOAD_AT)
    add64(pushes, session.number)
    add64(pushes, session.owner_epoch)
    add32(pushes, fast_path.since)
    add64(pushes, session_seq)
    add16(pushes, identifier)
    add8(pushes, 1 | TRACED_FLAG if traced else 1)
    add32(pushes, expiry_s)
    add16(pushes, topic_bytes)
    add32(pushes, property_bytes + len(route.identifiers))
    add32(pushes, payload_bytes)
    add_span(pushes, data, body_at, topic_bytes + property_bytes)
    add_bytes(pushes, route.identifiers)
    add_span(pushes, data, body_at + topic_bytes + property_bytes, payload_bytes)
    return 0


def record_end(data: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return the end of the record at ``at``; -1 if it is invalid or ends after ``end``."""
    stop: cython.Py_ssize_t
    if data[at] == RUN and at + RUN_HEAD <= end:
        stop = at + RUN_HEAD + get16(data, at + 3) + get32(data, at + 5)
        return stop if stop <= end else -1
    if data[at] != MESSAGE or at + MESSAGE_HEAD > end:
        return -1
    stop = at + MESSAGE_HEAD + PLACE * get16(data, at + PLACES_AT)
    if data[at + FLAGS_AT] & SHARE_FLAG:
        stop += 2 + get16(data, stop) if stop + 2 <= end else end
    if data[at + FLAGS_AT] & OWNER_FLAG:
        stop += 26 + get16(data, stop) if stop + 26 <= end else end
    stop += get16(data, at + TOPIC_AT) + get32(data, at + PROPERTIES_AT) + get32(data, at + PAYLOAD_AT)
    return stop if stop <= end else -1


def is_simple(data: cython.p_uchar, at: cython.Py_ssize_t) -> cython.bint:
    """Return whether a MSG record has QoS 1, an edge's counter and an ASCII topic, and no RETAIN, share or owner."""
    if data[at + FLAGS_AT] & ~TRACED_FLAG != 1 or data[at + KIND_AT] != 0:
        return False
    topic_at: cython.Py_ssize_t = at + MESSAGE_HEAD + PLACE * get16(data, at + PLACES_AT)
    stop: cython.Py_ssize_t = topic_at + get16(data, at + TOPIC_AT)
    if stop == topic_at:
        return False
    while topic_at < stop:
        if data[topic_at] == 0 or data[topic_at] >= 0x80:
            return False
        topic_at += 1
    return True


def process_record(
    handler: PublishHandler, payload: bytes, at: cython.Py_ssize_t, stop: cython.Py_ssize_t
) -> cython.int:
    """Process a message in each of its partitions."""
    data: cython.p_uchar = payload
    places: cython.Py_ssize_t = get16(data, at + PLACES_AT)
    place_at: cython.Py_ssize_t = at + MESSAGE_HEAD
    body_at: cython.Py_ssize_t = place_at + PLACE * places
    simple: cython.bint = is_simple(data, at)
    record: PublishMessage | None = None
    fast_path: FastPathPublish | None
    number: cython.uint
    epoch: cython.ulong
    while places > 0:
        places -= 1
        number = get16(data, place_at)
        epoch = get32(data, place_at + 2)
        place_at += PLACE
        fast_path = find_fast_path(handler, number) if simple else handler.fast_paths.get(number)
        if (
            simple
            and fast_path is not None
            and fast_path.since <= epoch <= fast_path.epoch
            and process_message(handler, fast_path, data, at, body_at)
        ):
            continue
        if fast_path is not None:  # the slow path may change it
            close_fast_path(handler, fast_path)
        handler.fast_paths.pop(number, None)
        if record is None:
            decoded = decode_publish(payload[at:stop])[0]
            assert isinstance(decoded, PublishMessage)
            record = decoded
        handler.others(record, number, epoch)
    return 0


def find_fast_path(handler: PublishHandler, number: cython.uint) -> FastPathPublish | None:
    """Return the open fast path of a partition, None if the partition needs the slow path now."""
    fast_path: FastPathPublish | None = handler.fast_paths.get(number)
    if fast_path is None and number not in handler.fast_paths:
        fast_path = handler.get_fast_path(number)
        handler.fast_paths[number] = fast_path
        if fast_path is not None:
            open_fast_path(handler, fast_path)
    return fast_path
