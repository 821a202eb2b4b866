"""HELLO: decoded from any split, checked against this node and the certificate."""

import msgspec
import pytest

from wire.links.admission import check_hello
from wire.messages.frames import HEADER, PROTOCOL_VERSION, FrameKind
from wire.messages.hello import (
    DIAL_RANK,
    HELLO_BYTES_MAX,
    HelloReader,
    LinkError,
    LinkHello,
    NodeIdentity,
    OtherCluster,
    PeerKey,
    dials,
    encode_hello,
)

MINE = NodeIdentity("c", "router-0", "router", 7, "h:1")
EDGE = NodeIdentity("c", "edge-0", "edge", 3, "h:2")


def hello_of_version(version: int, node: str, tier: str, *, readable: bool = True) -> bytes:
    """Return the HELLO of a node of another version, with fields that this one knows, or without them."""
    fields = {"cluster": "test", "node": node, "tier": tier, "incarnation": 1} if readable else {"who": [node, tier]}
    payload = msgspec.msgpack.encode({"version": version, **fields})
    return HEADER.pack(len(payload), FrameKind.HELLO, 0, version, 0) + payload


def read(data: bytes, step: int = 1) -> tuple[LinkHello | None, HelloReader]:
    reader = HelloReader()
    hello = None
    for at in range(0, len(data), step):
        assert hello is None
        hello = reader.receive(data[at : at + step])
    return hello, reader


def test_hello_reader_accepts_any_split_and_keeps_the_rest() -> None:
    """Bytes after the HELLO belong to the link."""
    data = encode_hello(EDGE, peer_incarnation=7, taken=9)
    hello, _ = read(data)
    assert hello == LinkHello(PROTOCOL_VERSION, "c", "edge-0", "edge", 3, 7, 9, "h:2")
    hello, reader = read(data + b"rest", step=1000)
    assert hello is not None and reader.rest == b"rest"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n", "does not speak"),
        (HEADER.pack(HELLO_BYTES_MAX + 1, FrameKind.HELLO, 0, PROTOCOL_VERSION, 0), "does not speak"),
        (HEADER.pack(0, FrameKind.HELLO, 0, 9, 0), "version 9, this node 8"),
        (HEADER.pack(1, FrameKind.HELLO, 0, PROTOCOL_VERSION, 0) + b"\xc1", "unreadable HELLO"),
    ],
)
def test_hello_reader_refuses_other_bytes(data: bytes, why: str) -> None:
    """Refused at the first invalid byte, without buffering the declared length."""
    with pytest.raises(LinkError, match=why):
        read(data, step=1000)


@pytest.mark.parametrize(
    ("theirs", "certified", "why"),
    [
        (EDGE, ("c", "storage", "edge-0"), "edge edge-0 of cluster c came with the certificate of storage edge-0"),
        (EDGE, ("d", "edge", "edge-0"), "of cluster d"),
        (EDGE._replace(cluster="d"), None, "belongs to cluster 'd'"),
        (EDGE._replace(tier="boss"), None, "unknown tier 'boss'"),
        (EDGE._replace(node="router-0"), None, "this node's own name"),
        (EDGE._replace(node=""), None, "usable node name"),
        (EDGE._replace(incarnation=0), None, "usable node name"),
        (EDGE._replace(tier="operator"), ("c", "edge", "edge-0"), "operator came with the certificate of edge"),
        (EDGE._replace(tier="operator"), ("d", "admin", "ann"), "operator came with the certificate of admin"),
        (EDGE._replace(tier="operator"), ("c", "Admin", "ann"), "operator came with the certificate of Admin"),
        (EDGE._replace(tier="operator"), ("c", "admin", "a/b"), "name has letters"),
        (EDGE._replace(tier="operator"), ("c", "admin", "ann\n"), "name has letters"),
        (EDGE._replace(tier="operator"), ("c", "admin", "a" * 65), "name has letters"),
        (EDGE._replace(tier="admin"), ("c", "admin", "edge-0"), "unknown tier 'admin'"),
        (EDGE, ("c", "admin", "edge-0"), "came with the certificate of admin"),
    ],
)
def test_check_hello_refuses_a_mismatch(theirs: NodeIdentity, certified: tuple[str, str, str] | None, why: str) -> None:
    """The claimed tier must be the certified one."""
    hello, _ = read(encode_hello(theirs))
    assert hello is not None
    with pytest.raises(LinkError, match=why):
        check_hello(MINE, hello, certified)


def test_check_hello_accepts_nodes_and_operators() -> None:
    """A node under its own name; an operator's command under the certified name."""
    hello, _ = read(encode_hello(EDGE))
    assert hello is not None
    assert check_hello(MINE, hello, ("c", "edge", "edge-0")) == PeerKey("edge-0", "edge", 3)
    hello, _ = read(encode_hello(NodeIdentity("c", "cli-1", "operator", 5)))
    assert hello is not None
    for role in ("viewer", "operator", "admin"):
        assert check_hello(MINE, hello, ("c", role, "ann")) == PeerKey(f"{role}:ann/cli-1", "operator", 5)
    assert check_hello(MINE, hello, None) == PeerKey("admin:operator/cli-1", "operator", 5)  # on loopback only


def test_dials_holds_for_exactly_one_of_each_pair() -> None:
    """Lower rank dials higher; within a tier the smaller name dials."""
    nodes = [(tier, f"{tier}-{number}") for tier in DIAL_RANK for number in (0, 1)]
    for one in nodes:
        for other in nodes:
            if one != other:
                assert dials(*one, *other) != dials(*other, *one)
    assert dials("edge", "z", "storage", "a") and dials("storage", "z", "router", "a")


ONE, OTHER = "1" * 32, "2" * 32


@pytest.mark.parametrize(("theirs", "mine", "refused"), [
    (ONE, ONE, False), (ONE, OTHER, True), ("", ONE, False), (ONE, "", False), ("", "", False),
])  # fmt: skip
def test_check_hello_refuses_another_cluster_of_the_same_name(theirs: str, mine: str, refused: bool) -> None:
    """The cluster ID decides if both nodes know one; before its first map a node knows none."""
    hello, _ = read(encode_hello(EDGE._replace(cluster_id=theirs)))
    assert hello is not None and hello.cluster_id == theirs
    me = MINE._replace(cluster_id=mine)
    if refused:
        with pytest.raises(
            OtherCluster, match=f"edge-0 belongs to cluster c .{theirs}., this node to cluster c .{mine}"
        ):
            check_hello(me, hello, None)
    else:
        assert check_hello(me, hello, None).node == "edge-0"
