"""The other end of a link: identities and the HELLO frame. ``wire/links/admission.py`` checks them.

The dialling side writes its HELLO at once. The accepting side reads it, then answers with its own, so that each can
state how many frames of the other's incarnation it has taken (used in ``wire/links/link.py``). Pure logic; sockets are
in ``wire/links/hub.py`` and in the edge's loop, certificates in ``wire/links/tls.py``. Source:
docs/adr/0005-wire-format.md.
"""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from wire.decoding import LinkError, Payload, Unreadable, strictly
from wire.messages.frames import HEADER, HEADER_BYTES, PROTOCOL_VERSION, FrameKind
from wire.messages.ranges import U32, U64, Address, ClusterId, Incarnation, SomeNode, Word

__all__ = [
    "DIAL_RANK",
    "HELLO_BYTES_MAX",
    "OPERATOR_ROLES",
    "TIER_EDGE",
    "TIER_GATEWAY",
    "TIER_OPERATOR",
    "TIER_ROUTER",
    "TIER_STORAGE",
    "HelloReader",
    "LinkError",
    "LinkHello",
    "NodeIdentity",
    "OtherCluster",
    "OtherVersion",
    "PeerKey",
    "decode_hello",
    "dials",
    "encode_hello",
    "first_number",
]

TIER_EDGE = "edge"
TIER_STORAGE = "storage"
TIER_ROUTER = "router"
TIER_GATEWAY = "gateway"  # follows the map of the routers; never dialled, and not in the map
TIER_OPERATOR = "operator"  # the command line; dials routers, sends only CONTROL
OPERATOR_ROLES = ("viewer", "operator", "admin")  # in certificates of operators, in the place of a node's tier

# The lower rank dials the higher: an edge needs no port for its cluster.
DIAL_RANK = {TIER_OPERATOR: -1, TIER_GATEWAY: -1, TIER_EDGE: 0, TIER_STORAGE: 1, TIER_ROUTER: 2}
NUMBERS_BITS = 20  # for the numbers that an incarnation uses per millisecond; incarnations differ by at least one
HELLO_BYTES_MAX = 4096  # names and an address; a longer frame is not a HELLO


class OtherVersion(Unreadable):
    """The peer uses another version of the link protocol; it gets our HELLO, so that it can report that too."""

    def __init__(self, peer: str, version: int) -> None:
        super().__init__(f"{peer} speaks link protocol version {version}, this node {PROTOCOL_VERSION}")


class OtherCluster(LinkError):
    """The peer belongs to a cluster with another cluster ID."""

    def __init__(self, peer: str, cluster: str, theirs: str, ours: str) -> None:
        super().__init__(f"{peer} belongs to cluster {cluster} ({theirs}), this node to cluster {cluster} ({ours})")


class PeerKey(NamedTuple):
    """One incarnation of one node."""

    node: str
    tier: str
    incarnation: int


def first_number(incarnation: int) -> int:
    """Return the first number of an incarnation's requests and messages: above all numbers of former incarnations.

    An answer to a former incarnation may arrive at the next one, because both use the node's current link.
    """
    return incarnation << NUMBERS_BITS


class NodeIdentity(NamedTuple):
    """Facts about a node in its HELLO.

    ``incarnation`` grows with every start of the node: a lower one than the last seen is refused. ``address`` is where
    others dial it, ``host:port``; empty if it does not listen. ``cluster_id`` identifies its cluster; empty before its
    first map.
    """

    cluster: str
    node: str
    tier: str
    incarnation: int
    address: str = ""
    cluster_id: str = ""


class LinkHello(msgspec.Struct, frozen=True):
    """First frame of each side of a connection."""

    version: U32  # PROTOCOL_VERSION of the sender
    cluster: SomeNode
    node: SomeNode
    tier: Word
    incarnation: U64  # an operator's has a finer unit than a node's
    peer_incarnation: Incarnation = 0  # incarnation of ``taken``; 0: none is known
    taken: U64 = 0  # highest frame number taken from that incarnation
    address: Address = ""
    cluster_id: ClusterId = ""  # of the sender; "" before its first map


class _Version(msgspec.Struct, frozen=True):
    """Fields that a HELLO of any version has."""

    version: U32


_hello_decoder = msgspec.msgpack.Decoder(LinkHello)
_hello_encoder = msgspec.msgpack.Encoder()
_read_hello: Callable[[Payload], LinkHello] = strictly(_hello_decoder.decode, "HELLO")
_read_version: Callable[[Payload], _Version] = strictly(msgspec.msgpack.Decoder(_Version).decode, "HELLO")


def encode_hello(identity: NodeIdentity, peer_incarnation: int = 0, taken: int = 0) -> bytes:
    """Return the HELLO frame of a node, header included."""
    payload = _hello_encoder.encode(
        LinkHello(
            version=PROTOCOL_VERSION,
            cluster=identity.cluster,
            node=identity.node,
            tier=identity.tier,
            incarnation=identity.incarnation,
            peer_incarnation=peer_incarnation,
            taken=taken,
            address=identity.address,
            cluster_id=identity.cluster_id,
        )
    )
    return HEADER.pack(len(payload), FrameKind.HELLO, 0, PROTOCOL_VERSION, 0) + payload


def decode_hello(payload: Payload) -> LinkHello:
    """Return the HELLO of a frame's payload.

    Raises:
        Unreadable: It is malformed, or a value is out of its range.
        OtherVersion: It is of another protocol version.
    """
    try:
        return _read_hello(payload)
    except Unreadable:
        version = _read_version(payload).version
        if version != PROTOCOL_VERSION:
            raise OtherVersion("the peer", version) from None
        raise


class HelloReader:
    """Cuts the HELLO off the front of a byte stream, split anywhere; the rest belongs to the link."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.rest = b""

    def receive(self, data: bytes) -> LinkHello | None:
        """Return the HELLO once it is complete, None before; bytes after it are in ``rest``.

        Raises:
            LinkError: The bytes are not a HELLO, or one of another protocol version.
        """
        self._buffer += data
        if len(self._buffer) < HEADER_BYTES:
            return None
        length, kind, _flags, version, _number = HEADER.unpack_from(self._buffer)
        if kind != FrameKind.HELLO or length > HELLO_BYTES_MAX:
            raise LinkError("the peer does not speak the StrataMQ link protocol (no HELLO)")
        if version != PROTOCOL_VERSION:
            raise OtherVersion("the peer", version)
        end = HEADER_BYTES + length
        if len(self._buffer) < end:
            return None
        hello = decode_hello(bytes(self._buffer[HEADER_BYTES:end]))
        self.rest = bytes(memoryview(self._buffer)[end:])
        return hello


def dials(tier: str, node: str, peer_tier: str, peer_node: str) -> bool:
    """Whether (tier, node) dials (peer_tier, peer_node): exactly one of each pair does."""
    rank, peer_rank = DIAL_RANK[tier], DIAL_RANK[peer_tier]
    if rank != peer_rank:
        return rank < peer_rank
    return node < peer_node
