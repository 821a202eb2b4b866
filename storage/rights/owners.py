"""Owners of client IDs: the user that holds one or created its session.

A user is its name and the policy_epoch of its creation (0 if a file or a certificate names it). So a name that is
deleted and created again does not get the former user's sessions. The session of a client without a user, or of an
older version, goes to the first user that opens it. Decision: docs/adr/0034-access.md.
"""

from typing import NamedTuple

from wire.messages.sessions import Claim, OpenSession

__all__ = ["NO_OWNER", "Owner", "owner_by_claim", "owner_of"]


class Owner(NamedTuple):
    """A user of clients; an empty name is no user, whatever ``made`` is."""

    user: str = ""
    made: int = 0

    def admits(self, other: "Owner") -> bool:
        """Return whether another user may act for this owner."""
        return not self.user or self == other


NO_OWNER = Owner()


def owner_of(request: OpenSession | Claim) -> Owner:
    """Return the user in an edge's request."""
    return Owner(request.owner, request.owner_made) if request.owner else NO_OWNER


def owner_by_claim(known: Owner, claim: Claim) -> Owner:
    """Return the owner of a claimed connection.

    Args:
        known: The connection's owner in this partition's rows; it has priority.
        claim: Of an edge; older edges send no user.
    """
    return known if known.user else owner_of(claim)
