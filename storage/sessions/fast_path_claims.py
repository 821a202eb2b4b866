"""Fast path of claims without disk state: connections whose sessions end with them and have no stored state.

Each rule here is a case of ``Owners.open`` and ``Owners.close`` that writes no row, contacts no node and sets no
timer. All other cases return None before any change except of answered requests, and take the slow path.
"""

from storage.rights.owners import owner_of
from storage.sessions.holders import SessionOwner
from storage.sessions.ownership import Owners
from storage.state.partition import Partition
from wire.messages.sessions import CloseSession, OpenSession, SessionClosed, SessionOpened

__all__ = ["FastPathClaims"]


class FastPathClaims:
    """The fast path of one partition's claims, while it serves and no change of claims waits for a commit.

    Args:
        partition: The partition of the claims.
        owners: The slow path.
    """

    __slots__ = ("_owners", "_partition")

    def __init__(self, partition: Partition, owners: Owners) -> None:
        self._partition = partition
        self._owners = owners

    def open(self, request: OpenSession, edge: str, incarnation: int) -> SessionOpened | None:
        """Open a connection; return None if it needs the slow path. The edge is alive in the map."""
        owners, partition, client_id = self._owners, self._partition, request.client_id
        if request.expiry_s or request.will is not None or request.withdrawn or client_id in owners.holders:
            return None
        if client_id in partition.by_client or owners.openings or owners.wills.of(client_id) is not None:
            return None
        written = len(partition.writes)
        if owners.opened.process_pending(edge, incarnation, request) or len(partition.writes) != written:
            return None
        partition.owner_counter += 1
        owner_epoch = partition.epoch << 32 | partition.owner_counter
        owners.holders[client_id] = SessionOwner(
            edge, incarnation, request.connection, owner_epoch, 0, owner_of(request), opened_here=True
        )
        owners.opened.remember(edge, incarnation, request.request, stored=False)
        partition.count("opened")
        return SessionOpened(request.request, partition.number, partition.epoch, 0, owner_epoch)

    def close(self, request: CloseSession, edge: str, incarnation: int) -> SessionClosed | None:
        """Forget a connection that its edge closed; return None if it needs the slow path."""
        owners, client_id = self._owners, request.client_id
        holder = owners.holders.get(client_id)
        if holder is None or holder.session or holder.owner_epoch != request.owner_epoch:
            return None
        if (holder.edge, holder.incarnation) != (edge, incarnation) or owners.wills.of(client_id) is not None:
            return None
        del owners.holders[client_id]
        return SessionClosed(request.request, True)
