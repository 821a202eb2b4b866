"""Claims that leave nothing on the disk: connections whose sessions end with them, where nothing else is kept of them.

Each rule here is a case of ``Owners.open`` and ``Owners.close`` in which those write nothing, ask nobody and set no
timer. Everything else is None here, before anything was changed but what an edge has the answers of, and goes there.
"""

from storage.rights.owners import owner_of
from storage.sessions.holders import SessionOwner
from storage.sessions.ownership import Owners
from storage.state.partition import Partition
from wire.messages.sessions import CloseSession, OpenSession, SessionClosed, SessionOpened

__all__ = ["FastPathClaims"]


class FastPathClaims:
    """The plain claims of one partition, which serves, while no change of its claims waits for a commit.

    Args:
        partition: Whose they are.
        owners: Takes all others.
    """

    __slots__ = ("_owners", "_partition")

    def __init__(self, partition: Partition, owners: Owners) -> None:
        self._partition = partition
        self._owners = owners

    def open(self, request: OpenSession, edge: str, incarnation: int) -> SessionOpened | None:
        """Open a connection that is plain; None if it is not. The edge is alive by the map."""
        owners, partition, client_id = self._owners, self._partition, request.client_id
        if request.expiry_s or request.will is not None or request.withdrawn or client_id in owners.holders:
            return None
        if client_id in partition.by_client or owners.openings or owners.wills.of(client_id) is not None:
            return None
        written = len(partition.writes)
        if owners.opened.take_up(edge, incarnation, request) or len(partition.writes) != written:
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
        """Forget a connection that was plain, by the word of the edge that holds it; None if it was not."""
        owners, client_id = self._owners, request.client_id
        holder = owners.holders.get(client_id)
        if holder is None or holder.session or holder.owner_epoch != request.owner_epoch:
            return None
        if (holder.edge, holder.incarnation) != (edge, incarnation) or owners.wills.of(client_id) is not None:
            return None
        del owners.holders[client_id]
        return SessionClosed(request.request, True)
