"""The connection that owns a client ID, and the CONNECTs that wait for its end."""

import msgspec

from storage.rights.owners import Owner
from wire.messages.sessions import OpenSession

__all__ = ["Opening", "SessionOwner"]


class SessionOwner(msgspec.Struct, eq=False):  # created for each CONNECT, like ``Opening``
    """The connection that owns a client ID."""

    edge: str
    incarnation: int
    connection: int
    owner_epoch: int
    session: int
    owner: Owner
    opened_here: bool = False  # by this incarnation of the primary, which knows its own response
    session_present: bool = False

    def is_for(self, opening: "Opening") -> bool:
        """Return whether a CONNECT is a retry of this connection."""
        mine = (self.edge, self.incarnation, self.connection)
        return mine == (opening.edge, opening.incarnation, opening.request.connection)


class Opening(msgspec.Struct, eq=False):
    """A CONNECT that waits for the end of the former connection or session."""

    request: OpenSession
    edge: str
    incarnation: int
    ends: bool = False  # it waits for the end of the session that it replaces
