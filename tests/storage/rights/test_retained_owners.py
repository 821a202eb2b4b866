"""A retained message keeps its publisher, because it may become void when that user loses the right."""

import pytest

from storage.state import keys
from storage.state.rows import RetainedRow, unpack
from tests.storage.requests import read, retained
from tests.storage.storage_cluster import Cluster, with_edge, with_settings


def owner(cluster: Cluster, topic: str) -> tuple[str, int]:
    """Return the owner of a retained message."""
    value = cluster.primary(0).core.partitions[0].partition.get(keys.retained_key(0, topic))
    assert value is not None
    row = unpack(RetainedRow, value)
    return row.owner, row.owner_made


@pytest.mark.parametrize("size", [3, 2_000_000])
@pytest.mark.parametrize("crash", [False, True])
def test_retained_message_is_owned_by_its_publisher(size: int, crash: bool) -> None:
    """With a large body too; the next publisher replaces the first one, also without a user."""
    cluster, edge = with_edge(partitions=1)
    last = (1 << 62) - 1
    for name, made in ((b"ann", 5), (b"\xc3\xa4nn" * 80, last), (b"", 0)):
        edge.publish(retained("t", "x" * size, owner=name, owner_made=made), 0)
        cluster.settle()
        if crash:
            cluster.crash_all()
        assert owner(cluster, "t") == (name.decode(), made)
        assert [len(message.payload) for message in read(cluster, "t")] == [size]


@pytest.mark.parametrize("crash", [False, True])
def test_retained_messages_of_one_user_are_bounded(crash: bool) -> None:
    """Cleared or taken-over topics no longer count; other users and clients without a user have their own bound."""
    cluster, edge = with_edge(partitions=1, settings=with_settings(retained_per_user_max=2))

    def put(topic: str, owner: bytes, text: str = "x") -> int:
        if crash:
            cluster.crash_all()
        tag = edge.publish(retained(topic, text, owner=owner, owner_made=3), 0)
        cluster.settle()
        return edge.acked[tag]

    assert [put(topic, b"ann") for topic in ("a", "b", "c", "b")] == [0, 0, 0x97, 0]
    assert [put(topic, b"") for topic in ("d", "e", "f")] == [0, 0, 0]
    assert [put("d", b"ann"), put("g", b"bob"), put("a", b"bob"), put("d", b"ann")] == [0x97, 0, 0, 0]
    assert [put("c", b"ann"), put("b", b"ann", ""), put("c", b"ann")] == [0x97, 0, 0]
    refused = cluster.primary(0).core.event_counts().get("refused_retained_user", 0)
    assert refused == (0 if crash else 3)  # counts end with their process
    assert {topic: owner(cluster, topic)[0] for topic in "acdefg"} == {
        "a": "bob", "c": "ann", "d": "ann", "e": "", "f": "", "g": "bob"
    }  # fmt: skip
