"""Whose a client ID is: the user that holds it or made its session, and nobody else.

A user is its name and the policy_epoch at which it was made (0 where a file or a certificate names it), so that a name
that is deleted and given again finds nothing of the first one's. A client without a name is nobody's: its session, and
one of an older version, goes to the first user that opens it. Decision: docs/adr/0034-access.md.
"""

from typing import NamedTuple

from wire.messages.sessions import Claim, OpenSession

__all__ = ["NOBODY", "Owner", "owner_by_claim", "owner_of"]


class Owner(NamedTuple):
    """A user of clients; without a name it is nobody, whatever else it says."""

    user: str = ""
    made: int = 0

    def admits(self, other: "Owner") -> bool:
        """Return whether another one may act for what this one owns."""
        return not self.user or self == other


NOBODY = Owner()


def owner_of(request: OpenSession | Claim) -> Owner:
    """Return whom an edge names."""
    return Owner(request.owner, request.owner_made) if request.owner else NOBODY


def owner_by_claim(known: Owner, claim: Claim) -> Owner:
    """Return whose a claimed connection is.

    Args:
        known: The owner of that very connection by this partition's rows: it goes before what an edge says.
        claim: Of an edge, which may be too old to name anybody.
    """
    return known if known.user else owner_of(claim)
