"""Findings of the core targets: decodable messages that ended a node, each on that core."""

import pytest

from tests.fuzz.core_targets import check_edge, check_router, check_storage
from wire.decoding import Unreadable
from wire.messages.batches import PublishMessage, decode_publish, encode_message
from wire.messages.control import decode_control, encode_control
from wire.messages.retained import RetainedPage
from wire.messages.routes import Resolve
from wire.messages.sessions import PollClaims
from wire.messages.wills import FireWill, SessionWill

EDGE, ROUTER, STORAGE = b"\0", b"\0", b"\1"  # the sender, for each of the cores
STORAGE_TO_EDGE = b"\1"


@pytest.mark.parametrize("topic", ["", "\0", "a\0b", "#"])
def test_topics_invalid_for_clients_refused(topic: str) -> None:
    """An edge's Resolve ended the router, a storage node's FireWill the edge."""
    check_router(EDGE + encode_control(Resolve(1, 0, 1, [topic])))
    check_edge(STORAGE_TO_EDGE + encode_control(FireWill(1, 0, 1, 1, SessionWill(topic, b""))))
    with pytest.raises(Unreadable):
        decode_control(encode_control(Resolve(1, 0, 1, [topic])))


@pytest.mark.parametrize("topic", [b"", b"\0", b"\xff\xfe"])
def test_message_with_empty_topic_refused(topic: bytes) -> None:
    """Any edge could end a storage node with it."""
    message = encode_message(PublishMessage(7, topic, b"m", 1, partitions=(0,)))
    check_storage(b"\4" + message)
    with pytest.raises(Unreadable):
        decode_publish(message)


def test_page_with_continuation_but_no_message_refused() -> None:
    """The next request had no last topic."""
    for number in range(0xE0, 0x100):
        check_edge(bytes((number,)) + encode_control(RetainedPage(1, [], True, 0)))


@pytest.mark.parametrize("partition", [-(10**9), -1, 4, 300, 65_534, 65_535, 1 << 48])
def test_invalid_partition_numbers_refused(partition: int) -> None:
    """A negative number was an index from the end, or out of range."""
    for who in range(4):
        payload = bytes((who,)) + encode_control(PollClaims(1, partition, 1))
        check_router(payload)
        check_storage(payload)
        check_edge(payload)
