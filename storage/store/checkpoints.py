"""Checkpoints of a data file whose syncs run beside the loop, step by step.

The library would sync the file twice in the call that writes the header, with the interpreter lock. Here a due
checkpoint runs in these steps; between them the loop continues, reads, and commits to the write-ahead log:

| step | synced on a thread | then in the loop |
|---|---|---|
| pages | the journal with the sums of all pages so far; the data file | the header for them is written |
| journal, if it is to be replaced | its replacement | it is renamed; the header is written |
| header | the folder, if the journal was renamed; the data file | pages and log before it may be overwritten |

The data file and its log must not be written from the first step to the last. A page written after the pages' sync
could belong to the new header. One written before the header is durable could be needed by the old header. A caller
that writes anyway voids the checkpoint, or waits for its header (``LsmFile.transact``). Decision:
docs/adr/0204-checkpoints-beside-the-loop.md.
"""

import os

from storage.store.lsm_file import Descriptor, LsmFile
from storage.store.protocol import SyncTicket
from storage.store.store_sync import StoreSync

__all__ = ["CheckpointSync", "Checkpoints"]


class CheckpointSync(StoreSync):
    """The files that one step has to sync, other than those of commits."""

    def __init__(self, first: int, data: Descriptor | None) -> None:
        """Args:
        first: A descriptor, to be closed; -1: none.
        data: Of the data file.
        """
        super().__init__(0, first, None, also=-1 if data is None else data.number)
        self.data = data  # stays open during the sync


class Checkpoints:
    """The checkpoints of one data file, one at a time."""

    def __init__(self, file: LsmFile) -> None:
        self._file = file
        self._connection = 0
        self._step: CheckpointSync | None = None
        self._has_header = False
        self._side = -1  # descriptor of the journal's replacement, -1: none

    @property
    def under_way(self) -> bool:
        """Whether the data file must not be written."""
        return self._step is not None and self._connection == self._file.connection

    def next(self, synced: SyncTicket | None = None) -> CheckpointSync | None:
        """Return the files to sync next, None if there are none.

        Args:
            synced: The last returned step, if it is synced; else a checkpoint begins if one is due.
        """
        if synced is None:
            return None if self.under_way or not self._file.is_checkpoint_due else self._begin()
        if synced is not self._step or self._step is None or not self.under_way:
            return None  # the file was reopened meanwhile
        if self._has_header:
            self._step = None
            self._file.header_synced()
            return None
        if self._side >= 0 and self._step.data is not None:
            self._step = CheckpointSync(os.dup(self._side), None)
            return self._step
        return self._write_header()

    def _begin(self) -> CheckpointSync:
        journal, self._side = self._file.hand_out_sums()
        self._connection, self._has_header = self._file.connection, False
        self._step = CheckpointSync(os.dup(journal), self._file.data)
        return self._step

    def _write_header(self) -> CheckpointSync:
        is_replaced = self._side >= 0 and self._file.replace_sums()
        if not self._file.write_header():
            return self._begin()  # a caller had to write meanwhile
        self._has_header = True
        folder = os.open(self._file.path.parent, os.O_RDONLY | os.O_CLOEXEC) if is_replaced else -1
        self._step = CheckpointSync(folder, self._file.data)
        return self._step
