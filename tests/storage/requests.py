"""Requests that storage tests share: messages, reads of retained ones, wills that fired."""

from tests.storage.storage_cluster import Cluster
from wire.messages.batches import PublishMessage
from wire.messages.retained import ReadRetained, RetainedMessage, RetainedPage
from wire.messages.wills import SessionWill


def retained(topic: str, text: str, *, qos: int = 1, **more: object) -> PublishMessage:
    """Return a retained message."""
    return PublishMessage(0, topic.encode(), text.encode(), qos, retain=True, **more)  # type: ignore[arg-type]


def read(cluster: Cluster, topic_filter: str, partition: int = 0, limit: int = 100) -> list[RetainedMessage]:
    """Read every page of the retained messages of one partition."""
    edge = cluster.edges["e1"]
    found: list[RetainedMessage] = []
    after = ""
    while True:
        request = next(edge.requests)
        edge.ask(ReadRetained(request, partition, edge.epoch(partition), topic_filter, after, limit))
        cluster.settle()
        page = next(one for one in edge.answers(RetainedPage) if one.request == request)
        found += page.messages
        if not page.more:
            return found
        after = page.messages[-1].topic


def fired(cluster: Cluster) -> list[bytes]:
    """Return the payloads of the wills that were sent to any edge, repeats of one origin once."""
    seen = {}
    for edge in cluster.edges.values():
        for will in edge.wills:
            seen[will.partition, will.partition_epoch, will.number] = will.will.payload
    return list(seen.values())


WILL = SessionWill("w", b"gone", 1)
DELAYED_WILL = SessionWill("w", b"gone", 1, delay_s=3)


def message(text: str = "m", topic: str = "a/b", qos: int = 1, **more: object) -> PublishMessage:
    """Return a message of an edge."""
    return PublishMessage(0, topic.encode(), text.encode(), qos, **more)  # type: ignore[arg-type]
