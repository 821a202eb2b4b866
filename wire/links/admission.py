"""Admission of an incarnation to its link: certificate, HELLO, what is known of its name, and where the link goes on.

The tables of links are two, for an edge keeps its connections in the compiled loop (``edge/cluster/peer_table.py``,
``wire/links/link_table.py``); each looks up what it knows of a name and asks here. Pure rules.
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
UNCERTIFIED = "admin", TIER_OPERATOR  # role and name of an operator on a plaintext link, which is on loopback only


class HelloResume(NamedTuple):
    """A HELLO's words to its reader: how many frames were taken, and of which of the reader's incarnations."""

    incarnation: int = 0  # 0: this node knows of no incarnation
    taken: int = 0

    def of(self, key: PeerKey) -> int:
        """Return what an incarnation was told; to another incarnation than the one that was meant that is nothing."""
        return self.taken if self.incarnation == key.incarnation else 0


def check_certificate(mine: NodeIdentity, certified: tuple[str, str, str], tiers: Collection[str]) -> None:
    """Judge a peer by its certificate alone, before anything that it says is looked at.

    Args:
        mine: This node.
        certified: (cluster, tier, node) from the peer's certificate.
        tiers: Those that are served here.
    Raises:
        LinkError: The certificate names no node of this cluster, or one of a tier that has no business here.
    """
    cluster, tier, node = certified
    if cluster != mine.cluster:
        raise LinkError(f"the certificate is of {_describe(certified)}, this node is of cluster {mine.cluster!r}")
    if (TIER_OPERATOR if tier in OPERATOR_ROLES else tier) not in tiers or not node:
        raise LinkError(f"a {mine.tier} takes no link from {_describe(certified)}")


def check_hello(mine: NodeIdentity, hello: LinkHello, certified: tuple[str, str, str] | None) -> PeerKey:
    """Judge a peer's HELLO against this node's and against its certificate.

    Args:
        mine: This node.
        hello: What the peer says.
        certified: (cluster, tier, node) from the peer's certificate; None on a plaintext link.
    Returns:
        The peer's key; ``hello.peer_incarnation`` and ``hello.taken`` are the link's business.
    Raises:
        LinkError: Another version, another cluster, an unknown tier, not who the certificate names, or who knows a
            later incarnation of this node.
        OtherCluster: A cluster of this name, with another cluster ID.
    """
    if hello.version != PROTOCOL_VERSION:
        raise OtherVersion(plain_text(hello.node), hello.version)
    if hello.cluster != mine.cluster:
        raise LinkError(f"{hello.node} belongs to cluster {hello.cluster!r}, this node to {mine.cluster!r}")
    if hello.cluster_id and mine.cluster_id and hello.cluster_id != mine.cluster_id:
        raise OtherCluster(plain_text(hello.node), mine.cluster, hello.cluster_id, mine.cluster_id)
    if hello.tier not in DIAL_RANK:
        raise LinkError(f"{hello.node} claims an unknown tier {hello.tier!r}")
    is_usable = 0 < hello.incarnation < (INCARNATION_MAX if hello.tier != TIER_OPERATOR else 1 << 64)
    if not 0 < len(hello.node) <= NODE_NAME_MAX or not is_usable:
        raise LinkError("HELLO without a usable node name and incarnation")
    if hello.peer_incarnation > mine.incarnation:
        raise LinkError(
            f"{hello.node} knows incarnation {hello.peer_incarnation} of {mine.node}, this one is {mine.incarnation}: "
            "another process has that name, or its data folder is new and the clock is behind"
        )
    if hello.node == mine.node:
        raise LinkError(f"the peer uses this node's own name {mine.node!r}")
    if hello.tier == TIER_OPERATOR:
        # Several commands of one operator run at once; role and name before the slash are the certified ones.
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
    if hello.tier == TIER_GATEWAY:  # no node of the map has such a name: a gateway takes the link of none
        return PeerKey(f"{TIER_GATEWAY}/{hello.node}", hello.tier, hello.incarnation)
    return PeerKey(hello.node, hello.tier, hello.incarnation)


def _describe(identity: tuple[str, str, str]) -> str:
    cluster, tier, node = identity
    return plain_text(f"{tier} {node} of cluster {cluster}")


def check_member(mine: NodeIdentity, key: PeerKey, roster: Roster | None, *, dialled: bool) -> None:
    """Judge an edge or a storage node by the map, before its link is taken.

    An address of the map that this node dialled may be that of an incarnation that the next epoch has.

    Args:
        mine: This node.
        key: The incarnation.
        roster: Registered nodes, by this node's map; None: a router, which takes links of all.
        dialled: This node opened the connection.
    Raises:
        LinkError: It is not registered, or is over.
    """
    if roster is None or key.tier not in (TIER_EDGE, TIER_STORAGE) or roster.is_registered(key):
        return
    if not dialled or roster.is_over(key):
        raise LinkError(f"{key.node} incarnation {key.incarnation} is not registered by the map of {mine.node}")


def admit(mine: NodeIdentity, key: PeerKey, known: PeerKey | None, condemned: str | None, *, dialled: bool) -> None:
    """Judge an incarnation that HELLO and certificate agree on by what this node knows of its name.

    Args:
        mine: This node.
        key: The incarnation.
        known: The incarnation of that name that has the link.
        condemned: Why this very incarnation is refused until it starts again; None: it is not.
        dialled: This node opened the connection. What a higher tier says is taken only over such a one: its certificate
            alone is no reason to listen to a router.
    Raises:
        LinkError: Its tier has no business here, does not dial this one, or was another one before, it is over, or it
            broke the protocol.
    """
    if key.tier not in link_tiers(mine.tier):
        raise LinkError(f"{mine.tier} {mine.node} takes no link from {key.tier} {key.node}")
    if not dialled and DIAL_RANK[key.tier] > DIAL_RANK[mine.tier]:
        raise LinkError(f"{key.tier} {key.node} dialled this {mine.tier}, and a {key.tier} dials no {mine.tier}")
    if known is not None and known.tier != key.tier:
        raise LinkError(f"{key.node} was a {known.tier} and now claims to be a {key.tier}")
    if known is not None and known.incarnation > key.incarnation:
        raise LinkError(f"{key.node} incarnation {key.incarnation} is over, {known.incarnation} was seen")
    if condemned is not None:
        raise LinkError(f"{key.node} broke the protocol and is refused until it starts again: {condemned}")


def check_room(mine: NodeIdentity, key: PeerKey, operators: int) -> None:
    """Refuse an operator where as many as may be are linked.

    Args:
        mine: This node.
        key: The incarnation.
        operators: Links of operators that stand, without one under the same name.
    Raises:
        LinkError: There is no room.
    """
    if key.tier == TIER_OPERATOR and operators >= OPERATORS_MAX:
        raise LinkError(f"{mine.tier} {mine.node} has {operators} links of operators, and takes no other: {key.node}")


def expect(key: PeerKey, tier: str, node: str) -> None:
    """Judge who answered at an address that this node dialled; ``node`` is "" where any of the tier may answer.

    Raises:
        LinkError: Somebody else: an address may have another holder since the map was told of it.
    """
    if key.tier != tier or (node and key.node != node):
        raise LinkError(f"expected {tier} {node}, found {key.tier} {key.node}")


def resume(mine: NodeIdentity, hello: LinkHello, key: PeerKey, told: HelloResume, taken: int) -> int:
    """Return how many of this node's frames the other side has taken: the connection goes on behind them.

    Args:
        mine: This node.
        hello: The other side's.
        key: Its incarnation.
        told: What this node's HELLO said to it.
        taken: Number of the newest frame that the link has taken now.
    Raises:
        LinkError: The link took more since it was told; what comes on this connection would come twice.
    """
    if taken != told.of(key):
        raise LinkError(f"{key.node}: another connection moved the link meanwhile")
    return hello.taken if hello.peer_incarnation == mine.incarnation else 0
