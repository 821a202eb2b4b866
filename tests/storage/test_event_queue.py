"""The event queue of a storage node's loop: order, quanta that are never empty, and long frames in several quanta."""

import random

from storage.event_queue import (
    ACK_WEIGHT,
    MESSAGE_WEIGHT,
    REQUEST_WEIGHT,
    WEIGHT_MAX,
    StorageEventQueue,
)
from storage.ready import BatchSynced, Event
from wire.decoding import Unreadable
from wire.messages.batches import (
    PublishMessage,
    PublishRun,
    PushAck,
    decode_publish,
    decode_push_acks,
    encode_message,
    encode_push_ack,
    encode_run,
)
from wire.messages.control import join_controls
from wire.messages.frames import FrameKind
from wire.messages.hello import TIER_EDGE, TIER_ROUTER, TIER_STORAGE, PeerKey
from wire.node.events import FrameArrived, LinkDown, LinkUp
from wire.node.fair_queue import LANE_BYTES_MAX, WAITING_BYTES_MAX

EDGE, OTHER = PeerKey("e1", TIER_EDGE, 1), PeerKey("e2", TIER_EDGE, 1)
ROUTER, BACKUP = PeerKey("r1", TIER_ROUTER, 1), PeerKey("s2", TIER_STORAGE, 1)
PER_TURN = WEIGHT_MAX // MESSAGE_WEIGHT


def waiting(*events: Event) -> StorageEventQueue:
    events_waiting = StorageEventQueue()
    for event in events:
        events_waiting.append(event)
    return events_waiting


def quanta(*events: Event) -> list[list[Event]]:
    """Return the events of each quantum."""
    left, found = waiting(*events), []
    while left:
        found.append(left.take())
        assert found[-1], "an empty quantum"
    return found


def payloads(taken: list[list[Event]]) -> list[bytes]:
    return [event.payload for turn in taken for event in turn if isinstance(event, FrameArrived)]


def test_quantum_is_bounded_by_weight() -> None:
    request, message = FrameArrived(EDGE, FrameKind.CONTROL, b""), FrameArrived(EDGE, FrameKind.PUBLISH, b"")
    link = LinkUp(PeerKey("r1", TIER_ROUTER, 1))
    assert waiting().take() == []
    assert quanta(request) == [[request]]
    assert len(quanta(*[message] * 3_000)[0]) == PER_TURN
    mixed = quanta(*[message] * 100, *[request] * 100)
    assert len(mixed[0]) == 100 + (WEIGHT_MAX - 100 * MESSAGE_WEIGHT) // REQUEST_WEIGHT
    assert quanta(*[link] * 50) == [[link] * 50]
    joined = FrameArrived(EDGE, FrameKind.CONTROLS, join_controls([b"\xc0"] * 10))
    assert [len(turn) for turn in quanta(*[joined] * 4)] == [2, 2]  # by their messages
    assert [len(turn) for turn in quanta(*map(BatchSynced, range(25)))] == [10, 10, 5]


def test_long_publish_frame_takes_several_quanta() -> None:
    """With all kinds of records; events after it stay after it."""
    rng = random.Random(7)
    records = []
    for tag in range(2_000):
        places = tuple(range(rng.choice((0, 1, 1, 1, 3, 40))))
        message = PublishMessage(tag, b"t", bytes(rng.randrange(60)), 1, partitions=places, epochs=places)
        message.share = b"g/t" if rng.random() < 0.2 else b""
        message.owner = bytes(rng.choices(b"abc", k=rng.randrange(9)))
        records.append(encode_message(message) if rng.random() < 0.9 else encode_run(PublishRun(5, b"t", b"packets")))
    frame = FrameArrived(EDGE, FrameKind.PUBLISH, b"".join(records))
    behind = LinkDown(EDGE)
    taken = quanta(LinkUp(EDGE), frame, behind)
    pieces = payloads(taken)
    assert b"".join(pieces) == frame.payload
    assert [record for piece in pieces for record in decode_publish(piece)] == decode_publish(frame.payload)
    assert (
        max(sum(len(getattr(one, "partitions", ())) or 1 for one in decode_publish(p)) for p in pieces) < PER_TURN + 40
    )
    assert taken[-1][-1] is behind and behind not in taken[0]


def test_large_messages_end_the_iteration() -> None:
    """An iteration of the core ends after some megabytes of them, because it is written to disk in one piece."""
    places = tuple(range(100))
    frame = FrameArrived(
        EDGE,
        FrameKind.PUBLISH,
        encode_message(PublishMessage(1, b"t", bytes(60_000), 1, partitions=places, epochs=places)),
    )
    events = StorageEventQueue()
    for _ in range(10):
        events.append(frame)
    for _ in range(9):
        assert events.take() == [frame]
        assert not events.goes_on, "the next one is of another iteration"


def test_long_acknowledgement_frame_takes_several_quanta() -> None:
    frame = FrameArrived(
        EDGE, FrameKind.PUSH_ACK, b"".join(encode_push_ack(PushAck(1, 1, 1, seq, 4, 0)) for seq in range(1_000))
    )
    pieces = payloads(quanta(frame))
    assert [ack.session_seq for piece in pieces for ack in decode_push_acks(piece)] == list(range(1_000))
    assert max(map(len, pieces)) <= WEIGHT_MAX // ACK_WEIGHT * 38 and len(pieces) > 3


def test_damaged_frame_is_taken_to_its_end() -> None:
    """The decoder rejects invalid records; here no error is raised and no byte is lost."""
    rng = random.Random(11)
    whole = b"".join(
        encode_message(PublishMessage(tag, b"t", b"m" * 20, 1, partitions=(0,), epochs=(1,))) for tag in range(400)
    )
    refused = 0
    for _ in range(300):
        data = bytearray(whole[: rng.randrange(1_001, len(whole))])
        for _ in range(rng.randrange(4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        for kind, decode in ((FrameKind.PUBLISH, decode_publish), (FrameKind.PUSH_ACK, decode_push_acks)):
            pieces = payloads(quanta(FrameArrived(EDGE, kind, bytes(data))))
            assert b"".join(pieces) == data
            try:
                decode(bytes(data))
            except Unreadable:
                refused += 1
    assert refused > 300


def test_only_pubacks_of_subscribers_are_not_urgent() -> None:
    """PUBREC, PUBCOMP and all other events are urgent; the decoder rejects partial records."""
    pubacks = b"".join(encode_push_ack(PushAck(1, 1, 1, number, 4, 0)) for number in range(3))
    rest = FrameArrived(EDGE, FrameKind.PUSH_ACK, pubacks)
    assert not waiting(rest, rest).pressing
    for kind, payload in (
        (FrameKind.PUSH_ACK, pubacks + encode_push_ack(PushAck(1, 1, 1, 9, 5, 0))),
        (FrameKind.PUSH_ACK, encode_push_ack(PushAck(1, 1, 1, 9, 7, 0)) + pubacks),
        (FrameKind.PUSH_ACK, pubacks[:-1]),
        (FrameKind.PUSH_ACK, pubacks + b"\x04"),
        (FrameKind.PUBLISH, pubacks),
    ):
        events = waiting(rest, FrameArrived(EDGE, kind, payload), rest)
        assert events.pressing
        while events:
            assert events.pressing
            events.take()
        assert not events.pressing
    assert waiting(BatchSynced(1)).pressing


# -- fair queue


class Links:
    """Links of edges that always have more to read."""

    def __init__(self) -> None:
        self.paused: list[str] = []

    def pause(self, node: str) -> None:
        assert node not in self.paused
        self.paused.append(node)

    def go_on(self, node: str) -> None:
        self.paused.remove(node)


def publish(peer: PeerKey, size: int = 10_000) -> FrameArrived:
    message = encode_message(PublishMessage(0, b"t", b"m" * 100, 0, partitions=(0,), epochs=(1,)))
    return FrameArrived(peer, FrameKind.PUBLISH, message * max(1, size // len(message)))


def fill(events: StorageEventQueue, links: Links, *peers: PeerKey) -> int:
    """Send until every peer is paused, a frame of each in turn; return the frames."""
    frames = 0
    while len(links.paused) < len(peers):
        for peer in peers:
            if peer.node not in links.paused:
                events.append(publish(peer))
                frames += 1
        assert frames < 100_000, "edges are read without a bound"
    return frames


def test_edge_is_paused_while_its_queue_is_full() -> None:
    """It is resumed when half of that is processed."""
    links = Links()
    events = StorageEventQueue(links)
    fill(events, links, EDGE)
    assert LANE_BYTES_MAX < events.octets < 1.1 * LANE_BYTES_MAX and events.pauses == 1
    while links.paused:
        assert events.octets > LANE_BYTES_MAX // 2
        assert events.take()
    assert 0.4 * LANE_BYTES_MAX < events.octets <= LANE_BYTES_MAX // 2
    while events:
        events.take()
    assert (events.octets, events.pauses, links.paused) == (0, 1, [])


def test_edges_share_the_queue_bound() -> None:
    links = Links()
    events = StorageEventQueue(links)
    peers = [PeerKey(f"e{number}", TIER_EDGE, 1) for number in range(64)]
    fill(events, links, *peers)
    assert events.octets < 1.1 * WAITING_BYTES_MAX
    while events:
        events.take()
    assert not links.paused


def test_incarnations_of_one_node_share_a_queue() -> None:
    """A stolen certificate may start new incarnations repeatedly: other nodes are still served."""
    links = Links()
    events = StorageEventQueue(links)
    for incarnation in range(1, 200):
        events.append(LinkUp(PeerKey("e1", TIER_EDGE, incarnation)))
        events.append(publish(PeerKey("e1", TIER_EDGE, incarnation), 20_000))
    assert links.paused == ["e1"]
    honest = publish(OTHER, 100)
    events.append(honest)
    taken = [*events.take(), *events.take()]
    assert honest in taken
    while events:
        events.take()
    assert not links.paused


def test_storage_links_are_not_paused() -> None:
    """Replication messages and acknowledgements are what drains a full queue."""
    links = Links()
    events = StorageEventQueue(links)
    for _ in range(2 * LANE_BYTES_MAX // 100_000):
        events.append(FrameArrived(BACKUP, FrameKind.REPLICATE_ACK, bytes(100_000)))
    assert not links.paused


def test_flooding_router_does_not_delay_other_peers() -> None:
    """A stolen router certificate filled a storage node, and delayed all leases and messages.

    Another router's lease, a sync and an edge's message are processed in the very next quanta, also while the disk is
    congested and only routers are served.
    """
    links = Links()
    events = StorageEventQueue(links)
    frame = FrameArrived(ROUTER, FrameKind.CONTROL, bytes(60))
    lease, synced = FrameArrived(PeerKey("r2", TIER_ROUTER, 1), FrameKind.CONTROL, b"lease"), BatchSynced(7)
    most = 0
    for go in range(300):
        while ROUTER.node not in links.paused:
            events.append(frame)
        most = max(most, events.octets)
        if go % 10 == 0:
            for event in (publish(EDGE, 100), lease, synced):
                events.append(event)
        own = go % 20 >= 10  # the disk is congested
        taken = [*events.take(own=own), *events.take(own=own)]
        assert (lease in taken, synced in taken) == (go % 10 == 0, go % 10 == 0)
        assert any(isinstance(event, FrameArrived) and event.peer == EDGE for event in taken) == (go % 20 == 0)
        if own:
            events.take()
            events.take()
    assert events.pauses and most < 1.1 * LANE_BYTES_MAX


def test_flooding_edge_delays_only_itself() -> None:
    """Another edge and a backup are served in the next quanta; a lease and a sync in the very next."""
    links = Links()
    events = StorageEventQueue(links)
    fill(events, links, EDGE)
    events.take()
    urgent: list[Event] = [BatchSynced(7), FrameArrived(ROUTER, FrameKind.CONTROL, b"lease")]
    others: list[Event] = [publish(OTHER, 100), FrameArrived(BACKUP, FrameKind.REPLICATE_ACK, b"acked")]
    for event in (*others, *urgent):
        events.append(event)
    assert events.take()[:2] == urgent
    taken = [event for _ in range(3) for event in events.take()]
    assert all(event in taken for event in others)


def test_fair_queue_keeps_order_and_loses_no_event() -> None:
    """With random events, sizes, senders and pauses."""
    rng = random.Random(5)
    links = Links()
    events = StorageEventQueue(links)
    peers = [EDGE, OTHER, BACKUP, ROUTER, PeerKey("e1", TIER_EDGE, 2)]
    sent: dict[PeerKey, list[bytes]] = {peer: [] for peer in peers}
    came: dict[PeerKey, list[bytes]] = {peer: [] for peer in peers}
    frames = 0
    while frames < 3_000 or events:
        if frames < 3_000:
            for _ in range(rng.randrange(20)):
                peer, frames = rng.choice(peers), frames + 1
                frame = publish(peer, rng.choice((100, 900, 5_000, 40_000)))
                sent[peer].append(frame.payload)
                events.append(frame)
        taken = events.take(own=rng.random() < 0.2)
        assert taken or not events.own
        for event in taken:
            assert isinstance(event, FrameArrived)
            came[event.peer].append(event.payload)
    assert {peer: b"".join(parts) for peer, parts in came.items()} == {
        peer: b"".join(parts) for peer, parts in sent.items()
    }
    assert not links.paused and events.octets == 0


def test_congested_disk_does_not_delay_leases() -> None:
    """Only events of routers and of this node are taken; the iteration ends there, and does not wait for edges."""
    events = waiting(publish(EDGE), FrameArrived(ROUTER, FrameKind.CONTROL, b"lease"), BatchSynced(1))
    assert events.own
    assert events.take(own=True) == [BatchSynced(1), FrameArrived(ROUTER, FrameKind.CONTROL, b"lease")]
    assert (events.own, events.goes_on, bool(events)) == (False, False, True)
    assert events.take(own=True) == []
    assert events.take()


def test_full_queue_of_pubacks_is_urgent() -> None:
    """A paused edge sends no other events: its PUBACKs cannot be delayed."""
    links = Links()
    events = StorageEventQueue(links)
    frame = FrameArrived(EDGE, FrameKind.PUSH_ACK, encode_push_ack(PushAck(1, 1, 1, 1, 4, 0)) * 1_000)
    while not links.paused:
        assert not events.pressing
        events.append(frame)
    assert events.pressing


def test_requeued_events_come_first_of_their_peer_and_alternate_with_others() -> None:
    """Its order stays, and a peer with many requeued events alternates with the others."""
    events, more = StorageEventQueue(), [FrameArrived(EDGE, FrameKind.PUBLISH, bytes([number])) for number in range(4)]
    others = [FrameArrived(OTHER, FrameKind.PUBLISH, bytes([number])) for number in range(2)]
    sent = FrameArrived(ROUTER, FrameKind.CONTROL, b"")
    events.append(more[0])
    assert events.take() == more[:1] and not events.goes_on
    events.requeue([more[0], LinkDown(EDGE)])
    assert events and events.pressing and events.octets >= 1
    for event in (more[1], others[0], sent):
        events.append(event)
    assert events.take() == [sent, more[0], LinkDown(EDGE)] and events.goes_on
    events.requeue([more[0], LinkDown(EDGE)])
    events.append(others[1])
    assert events.take() == others, "no event of a peer with requeued events"
    assert events.take() == [more[0], LinkDown(EDGE)]
    assert events.take() == [more[1]]
    assert not events and not events.pressing


def test_requeued_events_wait_while_the_disk_is_congested() -> None:
    """Only events of routers are taken then."""
    events, message = StorageEventQueue(), FrameArrived(EDGE, FrameKind.PUBLISH, b"")
    events.requeue([message])
    events.append(FrameArrived(ROUTER, FrameKind.CONTROL, b""))
    assert events.take(own=True) == [FrameArrived(ROUTER, FrameKind.CONTROL, b"")] and not events.goes_on
    assert events.take() == [message]
