"""Fast path of messages: from a frame's bytes to rows, pushes and replies, without an object for each message.

It processes QoS 1 messages with one receiver here that can be sent at once: no RETAIN, no group, no repeat, queue and
window not full. ``PartitionDelivery.publish`` processes all others and has all rules. Both paths give the same result
(``tests/storage/test_plain_messages.py`` compares them). ``wire/messages/batches.py`` and ``storage/state/rows.py``
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
    from storage.state.session_window import is_caught_up, is_window_open, take_place
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
        self.told = False  # a trace includes its client


NOT_PLAIN = FastPathRoute()
NOTHING = Octets()  # of a fast path that is not open


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
        self.pushes = NOTHING
        self.answers = NOTHING
        self.node = self.push_node = ""
        self.since = self.epoch = 0
        self.served_ms = 0
        self.building = 0  # operation of the messages
        self.writes = partition.writes
        self.heard = publishers.heard
        self.first = self.counter = 0  # counters of the edge: highest before the frame, and now
        self.now = 0.0

    def forget_routes(self) -> None:
        """Clear the cached receivers after a subscription changed."""
        self.routes.clear()


class PublishHandler:
    """Processes PUBLISH frames of edges.

    Args:
        lane_of: Returns the fast path of a partition that accepts messages now, else None.
        others: Processes a slow-path message: a record, one of its partitions, the edge's epoch of that partition.
        runs: Called for each record that is addressed to edges.

    Attributes:
        left: Remaining fan-out budget in copies; ``others`` reduces it by its copies.
    """

    def __init__(
        self,
        lane_of: Callable[[int], FastPathPublish | None],
        others: Callable[[PublishMessage, int, int], None],
        runs: Callable[[], None],
    ) -> None:
        self.lane_of = lane_of
        self.others = others
        self.runs = runs
        self.left = 1 << 60
        self.lanes: dict[int, FastPathPublish | None] = {}
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
                take_record(self, payload, at, stop)
            at = stop
            self.left -= 1
            if self.left <= 0:
                break
        for lane in self.lanes.values():
            if lane is not None:
                close_lane(self, lane)
        self.lanes.clear()
        return int(at)


def open_lane(taker: PublishHandler, lane: FastPathPublish) -> None:
    """Prepare a partition's fast path for the messages of a frame."""
    partition = lane.partition
    lane.since = partition.since
    lane.epoch = partition.epoch
    lane.served_ms = partition.served_ms
    lane.building = partition.building
    lane.writes = partition.writes
    lane.heard = lane.publishers.heard
    lane.node = taker.node
    lane.first = lane.counter = lane.origins.highest(taker.sender)
    lane.now = taker.now
    lane.pushes = taker.pool.pop() if taker.pool else Octets()
    lane.answers = taker.pool.pop() if taker.pool else Octets()


def close_lane(taker: PublishHandler, lane: FastPathPublish) -> None:
    """Emit the output of one partition, and record the edge's highest counter."""
    partition = lane.partition
    pushes: Octets = lane.pushes
    answers: Octets = lane.answers
    if lane.counter > lane.first:
        lane.origins.remember_edge(taker.sender, lane.counter)
        send_pushes(lane)
        partition.emit(lane.node, FrameKind.PUBLISH_ACK, take_all(answers))
    taker.pool.append(pushes)
    taker.pool.append(answers)
    lane.pushes = NOTHING
    lane.answers = NOTHING


def send_pushes(lane: FastPathPublish) -> cython.int:
    """Emit the buffered pushes to their node."""
    pushes: Octets = lane.pushes
    if pushes.used:
        lane.partition.emit(lane.push_node, FrameKind.PUSH, take_all(pushes))
    return 0


def find_route(lane: FastPathPublish, topic: bytes) -> FastPathRoute:
    """Return the receiver of a topic, and cache it."""
    route: FastPathRoute = NOT_PLAIN
    matches = lane.partition.trie.match(topic.decode())
    if len(matches) == 1:
        session, subscription = matches[0]
        if subscription.qos and not subscription.no_local:
            route = FastPathRoute()
            tracing = lane.partition.tracing
            route.told = tracing is not None and tracing.wants_session(session)
            route.session = session
            route.identifiers = identifiers_of((subscription,))
    if len(lane.routes) >= ROUTES_MAX:
        lane.routes.clear()
    lane.routes[topic] = route
    return route


def take_plain(
    taker: PublishHandler,
    lane: FastPathPublish,
    data: cython.p_uchar,
    at: cython.Py_ssize_t,
    body_at: cython.Py_ssize_t,
) -> cython.bint:
    """Process a message in one partition; return False, without effect, if it needs the slow path.

    Args:
        taker: Handler of its frame.
        lane: Open fast path of the partition.
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
    if tag <= lane.counter or payload_bytes > lane.payload_max:
        return False
    if publisher and not hear_publisher(taker, lane, publisher, owner_epoch):
        return False
    topic: bytes = data[body_at : body_at + topic_bytes]
    route: FastPathRoute | None = lane.routes.get(topic)
    if route is None:
        route = find_route(lane, topic)
    owner: DurableSession | None = route.session
    if owner is None:
        return False
    session: SessionWindow = owner
    size: cython.Py_ssize_t = topic_bytes + property_bytes + payload_bytes + len(route.identifiers) + ENTRY_OVERHEAD
    if not has_room(lane, session, size):
        return False
    lane.counter = tag
    expiry_s: cython.ulong = get32(data, at + EXPIRY_AT)
    deadline: cython.ulonglong = 0
    if expiry_s != NO_EXPIRY:
        deadline = lane.served_ms + (expiry_s * 1000 if expiry_s else 1)
    if lane.life_ms and (deadline == 0 or deadline > lane.served_ms + lane.life_ms):
        deadline = lane.served_ms + lane.life_ms
    if deadline:
        expiry_s = (deadline - lane.served_ms + 999) // 1000
    if not session.aged:
        lane.partition.ages.note(session, lane.served_ms if lane.served_ms else 1)
    session_seq: cython.ulonglong = session.next_seq
    flight: InFlight = take_place(session, size)
    identifier: cython.uint = flight.packet_identifier
    if route.told or data[at + FLAGS_AT] & TRACED_FLAG:
        flight.traced = tell(lane, owner, session_seq, topic, identifier, data, at)
    write_row(taker.scratch, lane, session, session_seq, route, data, at, body_at, identifier, deadline)
    write_push(lane, session, session_seq, route, data, at, body_at, identifier, expiry_s, flight.traced)
    session.behind = lane.building
    add64(lane.answers, tag)
    add16(lane.answers, lane.number)
    add8(lane.answers, 0)
    return True


def tell(
    lane: FastPathPublish,
    session: DurableSession,
    session_seq: cython.ulonglong,
    topic: bytes,
    identifier: cython.uint,
    data: cython.p_uchar,
    at: cython.Py_ssize_t,
) -> cython.bint:
    """Trace a message that is queued and sent at once; return False if it is not traced."""
    tracing = lane.partition.tracing
    if tracing is None or not tracing.active:
        return False
    origin = (0, get64(data, at + ORIGIN_A_AT), get64(data, at + ORIGIN_B_AT))
    marked: cython.bint = data[at + FLAGS_AT] & TRACED_FLAG != 0
    tracing.taken(lane.number, session, session_seq, topic, origin, identifier, marked)
    if marked:
        lane.partition.tell_committed(topic, origin)
    return True


def hear_publisher(
    taker: PublishHandler, lane: FastPathPublish, publisher: cython.ulonglong, owner_epoch: cython.ulonglong
) -> cython.bint:
    """Record that a session publishes; return False if a newer connection of it published before."""
    known: tuple[int, float] | None = lane.heard.get(publisher)
    if known is not None and known[0] == owner_epoch and known[1] == lane.now:
        return True
    superseded = lane.publishers.hear(publisher, owner_epoch, lane.now, taker.lease_s)
    lane.heard = lane.publishers.heard
    return not superseded


def has_room(lane: FastPathPublish, session: SessionWindow, size: cython.Py_ssize_t) -> cython.bint:
    """Return whether a message of this size can be sent to a session's connection at once."""
    if session.deadline == ENDING or not is_caught_up(session) or not is_window_open(session):
        return False
    messages: cython.Py_ssize_t = lane.queue_messages_max
    octets: cython.Py_ssize_t = lane.queue_bytes_max
    if session.queue_bounds is not None:
        messages, octets = session.queue_most(messages, octets)
    queued: cython.Py_ssize_t = 0 if session._inflight is None else len(session._inflight)
    return queued < messages and session.queue_bytes + size <= octets


def write_row(
    scratch: Octets,
    lane: FastPathPublish,
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
    add16(scratch, lane.number)
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
    arrived: cython.ulonglong = lane.served_ms if lane.served_ms else 1
    add16(scratch, arrived >> 32)
    add32(scratch, arrived & 0xFFFFFFFF)
    add_span(scratch, data, body_at + topic_bytes + property_bytes, get32(data, at + PAYLOAD_AT))
    lane.writes[key] = take_all(scratch)
    return 0


def write_push(
    lane: FastPathPublish,
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
    pushes: Octets = lane.pushes
    if session.edge != lane.push_node or pushes.used > PUSHES_MAX:
        send_pushes(lane)
        lane.push_node = session.edge
    topic_bytes: cython.Py_ssize_t = get16(data, at + TOPIC_AT)
    property_bytes: cython.Py_ssize_t = get32(data, at + PROPERTIES_AT)
    payload_bytes: cython.Py_ssize_t = get32(data, at + PAYLOAD_AT)
    add64(pushes, session.number)
    add64(pushes, session.owner_epoch)
    add32(pushes, lane.since)
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


def take_record(taker: PublishHandler, payload: bytes, at: cython.Py_ssize_t, stop: cython.Py_ssize_t) -> cython.int:
    """Process a message in each of its partitions."""
    data: cython.p_uchar = payload
    places: cython.Py_ssize_t = get16(data, at + PLACES_AT)
    place_at: cython.Py_ssize_t = at + MESSAGE_HEAD
    body_at: cython.Py_ssize_t = place_at + PLACE * places
    simple: cython.bint = is_simple(data, at)
    record: PublishMessage | None = None
    lane: FastPathPublish | None
    number: cython.uint
    epoch: cython.ulong
    while places > 0:
        places -= 1
        number = get16(data, place_at)
        epoch = get32(data, place_at + 2)
        place_at += PLACE
        lane = lane_at(taker, number) if simple else taker.lanes.get(number)
        if (
            simple
            and lane is not None
            and lane.since <= epoch <= lane.epoch
            and take_plain(taker, lane, data, at, body_at)
        ):
            continue
        if lane is not None:  # the slow path may change it
            close_lane(taker, lane)
        taker.lanes.pop(number, None)
        if record is None:
            decoded = decode_publish(payload[at:stop])[0]
            assert isinstance(decoded, PublishMessage)
            record = decoded
        taker.others(record, number, epoch)
    return 0


def lane_at(taker: PublishHandler, number: cython.uint) -> FastPathPublish | None:
    """Return the open fast path of a partition, None if the partition needs the slow path now."""
    lane: FastPathPublish | None = taker.lanes.get(number)
    if lane is None and number not in taker.lanes:
        lane = taker.lane_of(number)
        taker.lanes[number] = lane
        if lane is not None:
            open_lane(taker, lane)
    return lane
