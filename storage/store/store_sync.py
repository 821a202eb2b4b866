"""One sync of a store's log, as a ticket: run at once, or passed to a thread (``log_syncs``)."""

import os
import stat

from storage.store.acked_marker import AckedMarker
from storage.store.errors import SyncFailed

__all__ = ["StoreSync"]


class StoreSync:
    """One sync of the log, and of the marker when it is due; made on the owner's thread, run once on any."""

    def __init__(self, transaction_no: int, log_descriptor: int, marker: AckedMarker | None, *, also: int = -1) -> None:
        """Args:
        transaction_no: Newest commit that it makes durable.
        log_descriptor: A duplicate, to be closed; -1: none.
        marker: Synced too, after the log.
        also: Descriptor of another file instead of the marker; the store does not close it while a sync runs.
        """
        self.transaction_no = transaction_no
        self._log_descriptor = log_descriptor  # a duplicate: the store may be reopened meanwhile
        self._marker = marker
        self._also = also

    def run(self) -> None:
        """Sync, blocking; os.fdatasync releases the interpreter lock."""
        log, marker = self.hand_over()
        try:
            for descriptor in (log, marker):
                if descriptor >= 0:
                    os.fsync(descriptor) if stat.S_ISDIR(os.fstat(descriptor).st_mode) else os.fdatasync(descriptor)
        except OSError as error:
            raise SyncFailed(f"fdatasync: {error}") from error
        finally:
            if log >= 0:
                os.close(log)

    def hand_over(self) -> tuple[int, int]:
        """Return the descriptors to sync, in this order: the log's, to be closed, and the other's or -1.

        Called on the owner's thread, or while that waits: the marker's next value goes to another slot from here on.
        """
        return self._log_descriptor, self._also if self._marker is None else self._marker.begin_sync()
