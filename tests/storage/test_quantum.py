"""The work of each completed iteration is carried out, even if more events are queued."""

from storage.event_queue import COPIES_MAX, StorageEventQueue
from storage.quantum import take_goes
from tests.storage.storage_cluster import Cluster
from wire.messages.batches import PublishMessage, encode_message
from wire.messages.frames import FrameKind
from wire.node.events import FrameArrived

CLIENTS = COPIES_MAX + 1  # one receiver is left for the second quantum
BEHIND = 400  # frames: more than one quantum processes


def test_iteration_ended_by_a_fanout_is_carried_out_with_more_events_queued() -> None:
    """Its copies were lost when the rest of the message took less than the time budget."""
    cluster = Cluster(partitions=1)
    edge = cluster.edges["e1"]
    clients = [edge.open(f"c{number}", settle=False) for number in range(CLIENTS)]
    cluster.settle()
    for client in clients:
        edge.subscribe(client, "all", settle=False)
    cluster.settle()
    node = cluster.primary(0)
    core, now = node.core, node.clock()
    operations = core.partitions[0].partition.meta.op_index

    def frame(tag: int, topic: bytes) -> FrameArrived:
        message = PublishMessage(tag, topic, b"m", 1, partitions=(0,), epochs=(edge.epoch(0),))
        return FrameArrived(edge.key, FrameKind.PUBLISH, encode_message(message))

    events = StorageEventQueue()
    events.append(frame(100_000, b"all"))
    begun = take_goes(core, events, lambda: now, now + 1.0, own=False)
    assert begun.goes_on and not begun.batch, "the message has receivers left"
    for tag in range(BEHIND):
        events.append(frame(100_001 + tag, b"nobody"))
    ended = take_goes(core, events, lambda: now, now + 1.0, own=False)
    assert events, "the iteration processed events after the message"
    assert ended.batch and len(ended.writes) >= CLIENTS, "the message's copies are written with its iteration"
    assert core.partitions[0].partition.meta.op_index == operations + 1
    following = []
    while events:
        ready = take_goes(core, events, lambda: now, now + 1.0, own=False)
        following += [ready.batch] if ready.batch else []
    assert following == list(range(ended.batch + 1, ended.batch + 1 + len(following))), "each batch is returned"
