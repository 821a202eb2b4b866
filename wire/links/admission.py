"""Admission of an incarnation to its link: certificate, HELLO, known state of its name, and the resume position.

Two link tables use these pure rules, because an edge keeps its connections in the compiled loop
(``edge/cluster/peer_table.py``, ``wire/links/link_table.py``). Each table looks up the state of a name and calls here.
Source: docs/adr/0005-wire-format.md.
"""

import re
from collections.abc import Collection
from typing import NamedTuple

from wire.decoding import plain_text
from wire.links.allowed import link_tiers
from wire.links.roster import Roster
from wire.messages.frames import PROTOCOL_VERSION
from wire.messages.hello import (
    DIAL_RANK,
    OPERATOR_ROLES,
    TIER_EDGE,
    TIER_GATEWAY,
    TIER_OPERATOR,
    TIER_STORAGE,
    LinkError,
    LinkHello,
    NodeIdentity,
    OtherCluster,
    OtherVersion,
    PeerKey,
)
from wire.messages.ranges import INCARNATION_MAX, NODE_NAME_MAX

__all__ = ["HelloResume", "admit", "check_certificate", "check_hello", "check_member", "check_room", "expect", "resume"]

OPERATORS_MAX = 32  # links of operators at one node

OPERATOR_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
UNCERTIFIED = "admin", TIER_OPERATOR  # role and name of an operator on a plaintext link, loopback only


class HelloResume(NamedTuple):
    """Resume position in a HELLO: the number of frames taken from one incarnation of the receiver."""

    incarnation: int = 0  # 0: no incarnation is known
    taken: int = 0

    def of(self, key: PeerKey) -> int:
        """Return the frames taken from an incarnation; 0 if the position belongs to another incarnation."""
        return self.taken if self.incarnation == key.incarnation else 0


def check_certificate(local: NodeIdentity, certified: tuple[str, str, str], tiers: Collection[str]) -> None:
    """Check a peer's certificate alone, before any of its bytes are decoded.

    Args:
        local: This node.
        certified: (cluster, tier, node) from the peer's certificate.
        tiers: Tiers that may link to this node.
    Raises:
        LinkError: The certificate names no node of this cluster, or a node of a tier that may not link here.
    """
    cluster, tier, node = certified
    if cluster != local.cluster:
        raise LinkError(f"the certificate is of {_describe(certified)}, this node is of cluster {local.cluster!r}")
    if (TIER_OPERATOR if tier in OPERATOR_ROLES else tier) not in tiers or not node:
        raise LinkError(f"a {local.tier} takes no link from {_describe(certified)}")


def check_hello(local: NodeIdentity, hello: LinkHello, certified: tuple[str, str, str] | None) -> PeerKey:
    """Check a peer's HELLO against this node's and against its certificate.

    Args:
        local: This node.
        hello: The peer's HELLO.
        certified: (cluster, tier, node) from the peer's certificate; None on a plaintext link.
    Returns:
        The peer's key; ``hello.peer_incarnation`` and ``hello.taken`` are the link's business.
    Raises:
        LinkError: Another version or cluster, an unknown tier, a node that the certificate does not name, or a peer
            that knows a later incarnation of this node.
        OtherCluster: A cluster of this name, with another cluster ID.
    """
    if hello.version != PROTOCOL_VERSION:
        raise OtherVersion(plain_text(hello.node), hello.version)
    if hello.cluster != local.cluster:
        raise LinkError(f"{hello.node} belongs to cluster {hello.cluster!r}, this node to {local.cluster!r}")
    if hello.cluster_id and local.cluster_id and hello.cluster_id != local.cluster_id:
        raise OtherCluster(plain_text(hello.node), local.cluster, hello.cluster_id, local.cluster_id)
    if hello.tier not in DIAL_RANK:
        raise LinkError(f"{hello.node} claims an unknown tier {hello.tier!r}")
    is_usable = 0 < hello.incarnation < (INCARNATION_MAX if hello.tier != TIER_OPERATOR else 1 << 64)
    if not 0 < len(hello.node) <= NODE_NAME_MAX or not is_usable:
        raise LinkError("HELLO without a usable node name and incarnation")
    if hello.peer_incarnation > local.incarnation:
        raise LinkError(
            f"{hello.node} knows incarnation {hello.peer_incarnation} of {local.node}, this one is {local.incarnation}"
            ": "
            "another process has that name, or its data folder is new and the clock is behind"
        )
    if hello.node == local.node:
        raise LinkError(f"the peer uses this node's own name {local.node!r}")
    if hello.tier == TIER_OPERATOR:
        # One operator may run several commands at once; the certificate names role and name, before the slash.
        who = certified if certified is not None else (hello.cluster, *UNCERTIFIED)
        cluster, role, name = who
        if cluster != hello.cluster or role not in OPERATOR_ROLES:
            raise LinkError(f"an operator came with the certificate of {_describe(who)}")
        if OPERATOR_NAME.fullmatch(name) is None:
            raise LinkError(f"an operator's name has letters, digits, . _ and -, not as in {_describe(who)}")
        return PeerKey(f"{role}:{name}/{hello.node}", hello.tier, hello.incarnation)
    claimed = (hello.cluster, hello.tier, hello.node)
    if certified is not None and certified != claimed:
        raise LinkError(f"{_describe(claimed)} came with the certificate of {_describe(certified)}")
    if hello.tier == TIER_GATEWAY:  # no node of the map can have such a name
        return PeerKey(f"{TIER_GATEWAY}/{hello.node}", hello.tier, hello.incarnation)
    return PeerKey(hello.node, hello.tier, hello.incarnation)


def _describe(identity: tuple[str, str, str]) -> str:
    cluster, tier, node = identity
    return plain_text(f"{tier} {node} of cluster {cluster}")


def check_member(local: NodeIdentity, key: PeerKey, roster: Roster | None, *, dialled: bool) -> None:
    """Check an edge or a storage node against the map, before its link is accepted.

    An address that this node dialled may belong to an incarnation of the next map epoch.

    Args:
        local: This node.
        key: The incarnation.
        roster: Registered nodes of this node's map; None: a router, which accepts links of all.
        dialled: This node opened the connection.
    Raises:
        LinkError: It is not registered, or was replaced.
    """
    if roster is None or key.tier not in (TIER_EDGE, TIER_STORAGE) or roster.is_registered(key):
        return
    if not dialled or roster.is_over(key):
        raise LinkError(f"{key.node} incarnation {key.incarnation} is not registered by the map of {local.node}")


def admit(local: NodeIdentity, key: PeerKey, known: PeerKey | None, condemned: str | None, *, dialled: bool) -> None:
    """Check an incarnation against the known state of its name, after HELLO and certificate.

    Args:
        local: This node.
        key: The incarnation.
        known: The incarnation of that name that has the link.
        condemned: Why this incarnation is fenced; None: it is not.
        dialled: This node opened the connection. A node accepts a higher tier only on a connection that it opened:
            a certificate alone does not make a trusted router.
    Raises:
        LinkError: Its tier may not link here, may not dial this one, or changed; the incarnation was replaced, or it is
            fenced.
    """
    if key.tier not in link_tiers(local.tier):
        raise LinkError(f"{local.tier} {local.node} takes no link from {key.tier} {key.node}")
    if not dialled and DIAL_RANK[key.tier] > DIAL_RANK[local.tier]:
        raise LinkError(f"{key.tier} {key.node} dialled this {local.tier}, and a {key.tier} dials no {local.tier}")
    if known is not None and known.tier != key.tier:
        raise LinkError(f"{key.node} was a {known.tier} and now claims to be a {key.tier}")
    if known is not None and known.incarnation > key.incarnation:
        raise LinkError(f"{key.node} incarnation {key.incarnation} is over, {known.incarnation} was seen")
    if condemned is not None:
        raise LinkError(f"{key.node} broke the protocol and is refused until it starts again: {condemned}")


def check_room(local: NodeIdentity, key: PeerKey, operators: int) -> None:
    """Refuse an operator when ``OPERATORS_MAX`` are linked.

    Args:
        local: This node.
        key: The incarnation.
        operators: Connected operator links, without one of the same name.
    Raises:
        LinkError: The limit is reached.
    """
    if key.tier == TIER_OPERATOR and operators >= OPERATORS_MAX:
        raise LinkError(f"{local.tier} {local.node} has {operators} links of operators, and takes no other: {key.node}")


def expect(key: PeerKey, tier: str, node: str) -> None:
    """Check the node that answered at a dialled address; ``node`` is "" where any of the tier may answer.

    Raises:
        LinkError: Another node: the address may have a new holder since the map was written.
    """
    if key.tier != tier or (node and key.node != node):
        raise LinkError(f"expected {tier} {node}, found {key.tier} {key.node}")


def resume(local: NodeIdentity, hello: LinkHello, key: PeerKey, position: HelloResume, taken: int) -> int:
    """Return how many of this node's frames the peer has taken: sending resumes after them.

    Args:
        local: This node.
        hello: The peer's HELLO.
        key: Its incarnation.
        position: Resume position in this node's HELLO.
        taken: Number of the newest frame that the link has taken now.
    Raises:
        LinkError: The link took more frames since that HELLO; this connection would repeat them.
    """
    if taken != position.of(key):
        raise LinkError(f"{key.node}: another connection moved the link meanwhile")
    return hello.taken if hello.peer_incarnation == local.incarnation else 0
