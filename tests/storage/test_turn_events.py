"""What waits for a storage node's loop is taken in order, and never nothing; long frames in several turns."""

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


def turns(*events: Event) -> list[list[Event]]:
    """Return what each turn takes."""
    left, found = waiting(*events), []
    while left:
        found.append(left.take())
        assert found[-1], "a turn that takes nothing"
    return found


def payloads(taken: list[list[Event]]) -> list[bytes]:
    return [event.payload for turn in taken for event in turn if isinstance(event, FrameArrived)]


def test_events_are_taken_by_weight() -> None:
    request, message = FrameArrived(EDGE, FrameKind.CONTROL, b""), FrameArrived(EDGE, FrameKind.PUBLISH, b"")
    link = LinkUp(PeerKey("r1", TIER_ROUTER, 1))
    assert waiting().take() == []
    assert turns(request) == [[request]]
    assert len(turns(*[message] * 3_000)[0]) == PER_TURN
    mixed = turns(*[message] * 100, *[request] * 100)
    assert len(mixed[0]) == 100 + (WEIGHT_MAX - 100 * MESSAGE_WEIGHT) // REQUEST_WEIGHT
    assert turns(*[link] * 50) == [[link] * 50]
    joined = FrameArrived(EDGE, FrameKind.CONTROLS, join_controls([b"\xc0"] * 10))
    assert [len(turn) for turn in turns(*[joined] * 4)] == [2, 2]  # by their messages
    assert [len(turn) for turn in turns(*map(BatchSynced, range(25)))] == [10, 10, 5]


def test_a_long_frame_of_messages_is_taken_in_several_turns() -> None:
    """Whatever kinds of records it has; what came behind it stays behind it."""
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
    taken = turns(LinkUp(EDGE), frame, behind)
    pieces = payloads(taken)
    assert b"".join(pieces) == frame.payload
    assert [record for piece in pieces for record in decode_publish(piece)] == decode_publish(frame.payload)
    assert (
        max(sum(len(getattr(one, "partitions", ())) or 1 for one in decode_publish(p)) for p in pieces) < PER_TURN + 40
    )
    assert taken[-1][-1] is behind and behind not in taken[0]


def test_long_messages_weigh_by_what_their_partitions_keep() -> None:
    """A turn of the core ends behind some megabytes of them: it is written to disk in one piece."""
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
        assert not events.goes_on, "the next one is of another turn"


def test_a_long_frame_of_acknowledgements_is_taken_in_several_turns() -> None:
    frame = FrameArrived(
        EDGE, FrameKind.PUSH_ACK, b"".join(encode_push_ack(PushAck(1, 1, 1, seq, 4, 0)) for seq in range(1_000))
    )
    pieces = payloads(turns(frame))
    assert [ack.session_seq for piece in pieces for ack in decode_push_acks(piece)] == list(range(1_000))
    assert max(map(len, pieces)) <= WEIGHT_MAX // ACK_WEIGHT * 38 and len(pieces) > 3


def test_a_frame_that_is_broken_anywhere_is_taken_to_its_end() -> None:
    """The decoder refuses what is no record; here nothing raises and nothing is lost."""
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
            pieces = payloads(turns(FrameArrived(EDGE, kind, bytes(data))))
            assert b"".join(pieces) == data
            try:
                decode(bytes(data))
            except Unreadable:
                refused += 1
    assert refused > 300


def test_only_pubacks_of_subscribers_may_wait() -> None:
    """PUBREC and PUBCOMP are waited for, as is everything else; half a record is for the decoder to refuse."""
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


# -- lanes


class Links:
    """Links of edges that send as much as is read."""

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
    """Send until no peer is read any more, a frame of each in turn; return the frames."""
    frames = 0
    while len(links.paused) < len(peers):
        for peer in peers:
            if peer.node not in links.paused:
                events.append(publish(peer))
                frames += 1
        assert frames < 100_000, "edges are read without a bound"
    return frames


def test_an_edge_is_not_read_while_its_lane_is_full() -> None:
    """It is read again when half of that is worked off."""
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


def test_many_edges_share_what_may_wait() -> None:
    links = Links()
    events = StorageEventQueue(links)
    peers = [PeerKey(f"e{number}", TIER_EDGE, 1) for number in range(64)]
    fill(events, links, *peers)
    assert events.octets < 1.1 * WAITING_BYTES_MAX
    while events:
        events.take()
    assert not links.paused


def test_whoever_comes_again_and_again_has_one_lane() -> None:
    """A thief of one certificate begins with another incarnation each time: others have their turns all the same."""
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


def test_links_of_storage_nodes_are_not_paused() -> None:
    """Copies and their acknowledgements are what a full lane is worked off with."""
    links = Links()
    events = StorageEventQueue(links)
    for _ in range(2 * LANE_BYTES_MAX // 100_000):
        events.append(FrameArrived(BACKUP, FrameKind.REPLICATE_ACK, bytes(100_000)))
    assert not links.paused


def test_a_router_that_floods_holds_up_nobody() -> None:
    """NIST: protect. A stolen router certificate filled a storage node, and kept all leases and messages waiting.

    Another router's lease, a sync and an edge's message have their turn in the very next goes, also while the disk is
    behind, when only routers are listened to.
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
        own = go % 20 >= 10  # the disk is behind
        taken = [*events.take(own=own), *events.take(own=own)]
        assert (lease in taken, synced in taken) == (go % 10 == 0, go % 10 == 0)
        assert any(isinstance(event, FrameArrived) and event.peer == EDGE for event in taken) == (go % 20 == 0)
        if own:
            events.take()
            events.take()
    assert events.pauses and most < 1.1 * LANE_BYTES_MAX


def test_behind_an_edge_that_sends_too_much_waits_that_edge_alone() -> None:
    """Another edge, and a backup, have their turn in the next goes; a lease and a sync in the very next."""
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


def test_lanes_keep_their_order_and_lose_nothing() -> None:
    """Whatever comes from whom, in whatever sizes, and whoever is paused."""
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


def test_while_the_disk_is_behind_leases_go_on() -> None:
    """Only what routers and this node say is taken; the turn ends there, and does not wait for edges."""
    events = waiting(publish(EDGE), FrameArrived(ROUTER, FrameKind.CONTROL, b"lease"), BatchSynced(1))
    assert events.own
    assert events.take(own=True) == [BatchSynced(1), FrameArrived(ROUTER, FrameKind.CONTROL, b"lease")]
    assert (events.own, events.goes_on, bool(events)) == (False, False, True)
    assert events.take(own=True) == []
    assert events.take()


def test_a_full_lane_of_pubacks_does_not_rest() -> None:
    """Nothing else comes from an edge that is not read: its PUBACKs cannot wait for company."""
    links = Links()
    events = StorageEventQueue(links)
    frame = FrameArrived(EDGE, FrameKind.PUSH_ACK, encode_push_ack(PushAck(1, 1, 1, 1, 4, 0)) * 1_000)
    while not links.paused:
        assert not events.pressing
        events.append(frame)
    assert events.pressing


def test_what_is_put_back_is_first_of_its_peer_and_others_come_in_between() -> None:
    """Its order stays, and a peer with much of it waits for the others in turn."""
    events, more = StorageEventQueue(), [FrameArrived(EDGE, FrameKind.PUBLISH, bytes([number])) for number in range(4)]
    others = [FrameArrived(OTHER, FrameKind.PUBLISH, bytes([number])) for number in range(2)]
    sent = FrameArrived(ROUTER, FrameKind.CONTROL, b"")
    events.append(more[0])
    assert events.take() == more[:1] and not events.goes_on
    events.put_back([more[0], LinkDown(EDGE)])
    assert events and events.pressing and events.octets >= 1
    for event in (more[1], others[0], sent):
        events.append(event)
    assert events.take() == [sent, more[0], LinkDown(EDGE)] and events.goes_on
    events.put_back([more[0], LinkDown(EDGE)])
    events.append(others[1])
    assert events.take() == others, "nothing of a peer of which something was put back"
    assert events.take() == [more[0], LinkDown(EDGE)]
    assert events.take() == [more[1]]
    assert not events and not events.pressing


def test_what_is_put_back_waits_while_the_disk_is_behind() -> None:
    """Only what routers sent is taken then."""
    events, message = StorageEventQueue(), FrameArrived(EDGE, FrameKind.PUBLISH, b"")
    events.put_back([message])
    events.append(FrameArrived(ROUTER, FrameKind.CONTROL, b""))
    assert events.take(own=True) == [FrameArrived(ROUTER, FrameKind.CONTROL, b"")] and not events.goes_on
    assert events.take() == [message]
