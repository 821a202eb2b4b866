"""Admission of an incarnation to its link, behind HELLO and certificate: what every tier asks of it, where it goes on.

The tables of links are two, for an edge keeps its connections in the compiled loop (``edge/cluster/peer_table.py``,
``wire/links/link_table.py``); each looks up what it knows of a name and asks here. Pure rules.
Source: docs/adr/0005-wire-format.md.
"""

from typing import NamedTuple

from wire.links.allowed import link_tiers
from wire.messages.hello import Hello, LinkError, NodeIdentity, PeerKey

__all__ = ["Told", "admit", "expect", "resume"]


class Told(NamedTuple):
    """A HELLO's words to its reader: how many frames were taken, and of which of the reader's incarnations."""

    incarnation: int = 0  # 0: this node knows of no incarnation
    taken: int = 0

    def of(self, key: PeerKey) -> int:
        """Return what an incarnation was told; to another incarnation than the one that was meant that is nothing."""
        return self.taken if self.incarnation == key.incarnation else 0


def admit(mine: NodeIdentity, key: PeerKey, known: PeerKey | None, condemned: str | None) -> None:
    """Judge an incarnation that HELLO and certificate agree on by what this node knows of its name.

    Args:
        mine: This node.
        key: The incarnation.
        known: The incarnation of that name that has the link.
        condemned: Why this very incarnation is refused until it starts again; None: it is not.
    Raises:
        LinkError: Its tier has no business here or was another one before, it is over, or it broke the protocol.
    """
    if key.tier not in link_tiers(mine.tier):
        raise LinkError(f"{mine.tier} {mine.node} takes no link from {key.tier} {key.node}")
    if known is not None and known.tier != key.tier:
        raise LinkError(f"{key.node} was a {known.tier} and now claims to be a {key.tier}")
    if known is not None and known.incarnation > key.incarnation:
        raise LinkError(f"{key.node} incarnation {key.incarnation} is over, {known.incarnation} was seen")
    if condemned is not None:
        raise LinkError(f"{key.node} broke the protocol and is refused until it starts again: {condemned}")


def expect(key: PeerKey, tier: str, node: str) -> None:
    """Judge who answered at an address that this node dialled; ``node`` is "" where any of the tier may answer.

    Raises:
        LinkError: Somebody else: an address may have another holder since the map was told of it.
    """
    if key.tier != tier or (node and key.node != node):
        raise LinkError(f"expected {tier} {node}, found {key.tier} {key.node}")


def resume(mine: NodeIdentity, hello: Hello, key: PeerKey, told: Told, taken: int) -> int:
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
