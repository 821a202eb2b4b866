"""Who is at the other end of a link: identities, the HELLO frame, and which tier may send what.

The dialling side writes its HELLO at once; the accepting side reads it, then answers with its own, so that each can
say how many frames of the other's incarnation it has taken (what that is for: ``wire/link.py``). Pure logic; sockets
are in ``wire/service.py`` and in the edge's loop, certificates in ``wire/tls.py``.
Source: docs/adr/0005-wire-format.md.
"""

from typing import NamedTuple

import msgspec

from wire.frames import HEADER, HEADER_BYTES, PROTOCOL_VERSION, FrameKind

__all__ = [
    "HELLO_BYTES_MAX",
    "TIER_EDGE",
    "TIER_OPERATOR",
    "TIER_ROUTER",
    "TIER_STORAGE",
    "Hello",
    "HelloReader",
    "LinkError",
    "NodeIdentity",
    "PeerKey",
    "check_hello",
    "dials",
    "encode_hello",
    "first_number",
    "may_send",
]

TIER_EDGE = "edge"
TIER_STORAGE = "storage"
TIER_ROUTER = "router"
TIER_OPERATOR = "operator"  # the command line; dials routers, sends CONTROL and nothing else

# The lower rank dials the higher: an edge needs no reachable port for its own cluster's sake.
DIAL_RANK = {TIER_OPERATOR: -1, TIER_EDGE: 0, TIER_STORAGE: 1, TIER_ROUTER: 2}
NUMBERS_BITS = 20  # of what a life numbers in a millisecond, in which an incarnation grows by one at least
HELLO_BYTES_MAX = 4096  # names and an address; anything longer is not one of us
NODE_NAME_BYTES_MAX = 128

# An edge's certificate cannot speak Raft or replication (design, section 9): sender tiers, receiver tiers.
FRAME_TIERS: dict[int, tuple[frozenset[str], frozenset[str]]] = {
    FrameKind.RAFT: (frozenset({TIER_ROUTER}), frozenset({TIER_ROUTER})),
    FrameKind.PUBLISH: (frozenset({TIER_EDGE, TIER_STORAGE}), frozenset({TIER_EDGE, TIER_STORAGE})),
    FrameKind.PUBLISH_ACK: (frozenset({TIER_EDGE, TIER_STORAGE}), frozenset({TIER_EDGE, TIER_STORAGE})),
    FrameKind.PUSH: (frozenset({TIER_STORAGE}), frozenset({TIER_EDGE})),
    FrameKind.PUSH_ACK: (frozenset({TIER_EDGE}), frozenset({TIER_STORAGE})),
    FrameKind.REPLICATE: (frozenset({TIER_STORAGE}), frozenset({TIER_STORAGE})),
    FrameKind.REPLICATE_ACK: (frozenset({TIER_STORAGE}), frozenset({TIER_STORAGE})),
}


class LinkError(Exception):
    """The peer, or what lies between, broke the rules of a link: close the connection, keep the process."""


class PeerKey(NamedTuple):
    """One life of one node."""

    node: str
    tier: str
    incarnation: int


def first_number(incarnation: int) -> int:
    """Return where a life begins to number its questions and messages: above all numbers of the lives before it.

    What one life asked may be answered to the next one, over whose link everything for that node leaves.
    """
    return incarnation << NUMBERS_BITS


class NodeIdentity(NamedTuple):
    """What a node says about itself in HELLO.

    ``incarnation`` grows with every start of the node: a lower one than the last seen is refused.
    ``address`` is where others dial it, ``host:port``; empty for who listens nowhere.
    """

    cluster: str
    node: str
    tier: str
    incarnation: int
    address: str = ""


class Hello(msgspec.Struct, frozen=True):
    """First frame of each side of a connection."""

    version: int  # PROTOCOL_VERSION of the sender
    cluster: str
    node: str
    tier: str
    incarnation: int
    peer_incarnation: int = 0  # whose frames ``taken`` counts; 0: I know of no life of yours
    taken: int = 0  # highest frame number taken from that incarnation
    address: str = ""


_hello_decoder = msgspec.msgpack.Decoder(Hello)
_hello_encoder = msgspec.msgpack.Encoder()


def encode_hello(identity: NodeIdentity, peer_incarnation: int = 0, taken: int = 0) -> bytes:
    """Return the HELLO frame of a node, header included."""
    payload = _hello_encoder.encode(
        Hello(
            version=PROTOCOL_VERSION,
            cluster=identity.cluster,
            node=identity.node,
            tier=identity.tier,
            incarnation=identity.incarnation,
            peer_incarnation=peer_incarnation,
            taken=taken,
            address=identity.address,
        )
    )
    return HEADER.pack(len(payload), FrameKind.HELLO, 0, PROTOCOL_VERSION, 0) + payload


class HelloReader:
    """Cuts the HELLO off the front of a byte stream, however it was split; the rest belongs to the link."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.rest = b""

    def receive(self, data: bytes) -> Hello | None:
        """Return the HELLO once it is whole, None before; bytes after it are in ``rest``.

        Raises:
            LinkError: This is no HELLO, or one of another protocol version.
        """
        self._buffer += data
        if len(self._buffer) < HEADER_BYTES:
            return None
        length, kind, _flags, version, _number = HEADER.unpack_from(self._buffer)
        if kind != FrameKind.HELLO or length > HELLO_BYTES_MAX:
            raise LinkError("the peer does not speak the StrataMQ link protocol (no HELLO)")
        if version != PROTOCOL_VERSION:
            raise LinkError(f"the peer speaks link protocol version {version}, this node {PROTOCOL_VERSION}")
        end = HEADER_BYTES + length
        if len(self._buffer) < end:
            return None
        try:
            hello = _hello_decoder.decode(memoryview(self._buffer)[HEADER_BYTES:end])
        except msgspec.MsgspecError as error:
            raise LinkError(f"unreadable HELLO: {error}") from None
        self.rest = bytes(memoryview(self._buffer)[end:])
        return hello


def check_hello(mine: NodeIdentity, hello: Hello, certified: tuple[str, str, str] | None) -> PeerKey:
    """Judge a peer's HELLO against this node's and against its certificate.

    Args:
        mine: This node.
        hello: What the peer says.
        certified: (cluster, tier, node) from the peer's certificate; None on a plaintext link.
    Returns:
        The peer's key; ``hello.peer_incarnation`` and ``hello.taken`` are the link's business.
    Raises:
        LinkError: Another version, another cluster, an unknown tier, not who the certificate names, or who knows a
            later life of this node.
    """
    if hello.version != PROTOCOL_VERSION:
        raise LinkError(f"{hello.node} speaks link protocol version {hello.version}, this node {PROTOCOL_VERSION}")
    if hello.cluster != mine.cluster:
        raise LinkError(f"{hello.node} belongs to cluster {hello.cluster!r}, this node to {mine.cluster!r}")
    if hello.tier not in DIAL_RANK:
        raise LinkError(f"{hello.node} claims an unknown tier {hello.tier!r}")
    if not hello.node or len(hello.node.encode()) > NODE_NAME_BYTES_MAX or hello.incarnation <= 0:
        raise LinkError("HELLO without a usable node name and incarnation")
    if hello.peer_incarnation > mine.incarnation:
        raise LinkError(
            f"{hello.node} knows incarnation {hello.peer_incarnation} of {mine.node}, this one is {mine.incarnation}: "
            "another process has that name, or its data folder is new and the clock is behind"
        )
    if hello.node == mine.node:
        raise LinkError(f"the peer uses this node's own name {mine.node!r}")
    if hello.tier == TIER_OPERATOR:
        # Several commands of one operator run at once; the name before the slash is the certified one.
        if certified is not None and certified[:2] != (hello.cluster, hello.tier):
            raise LinkError(f"an operator came with the certificate of {_describe(certified)}")
        name = certified[2] if certified is not None else TIER_OPERATOR
        return PeerKey(f"{name}/{hello.node}", hello.tier, hello.incarnation)
    claimed = (hello.cluster, hello.tier, hello.node)
    if certified is not None and certified != claimed:
        raise LinkError(f"{_describe(claimed)} came with the certificate of {_describe(certified)}")
    return PeerKey(hello.node, hello.tier, hello.incarnation)


def _describe(identity: tuple[str, str, str]) -> str:
    cluster, tier, node = identity
    return f"{tier} {node} of cluster {cluster}"


def dials(tier: str, node: str, peer_tier: str, peer_node: str) -> bool:
    """Whether (tier, node) is the one of the two that dials: exactly one of each pair does."""
    rank, peer_rank = DIAL_RANK[tier], DIAL_RANK[peer_tier]
    if rank != peer_rank:
        return rank < peer_rank
    return node < peer_node


def may_send(sender_tier: str, receiver_tier: str, kind: int) -> bool:
    """Whether a tier may send a kind of frame to another; unknown kinds are left to the receiver's dispatch."""
    if TIER_OPERATOR in (sender_tier, receiver_tier):
        return kind == FrameKind.CONTROL
    tiers = FRAME_TIERS.get(kind)
    return tiers is None or (sender_tier in tiers[0] and receiver_tier in tiers[1])
