"""Checkpoints of a data file whose syncs run beside the loop, step by step.

The library would sync the file twice in the call that writes the header, with the interpreter lock. Here a checkpoint
that is due goes through these steps; between them the loop goes on, reads, and commits to the write-ahead log:

| step | synced on a thread | and then, in the loop |
|---|---|---|
| pages | the journal of page sums, with those of all pages so far; the data file | the header for them is written |
| journal, if it is to be replaced | the one that takes its place | it takes the name; the header is written |
| header | the folder, if the name was taken; the data file | pages and log before it may be written again |

Nothing may be written to the data file or its log from the first step to the last: a page written after the sync of
the pages could be one that the header refers to, and one written before the header is durable one that the header
before it needs. A caller that writes all the same makes the checkpoint void, or waits for its header
(``LsmFile.transact``). Decision: docs/adr/0204-checkpoints-beside-the-loop.md.
"""

import os

from storage.store.lsm_file import Descriptor, LsmFile
from storage.store.protocol import SyncTicket
from storage.store.store_sync import StoreSync

__all__ = ["CheckpointSync", "Checkpoints"]


class CheckpointSync(StoreSync):
    """Files that one step has to sync; none of them is a commit's."""

    def __init__(self, first: int, data: Descriptor | None) -> None:
        """Args:
        first: A descriptor, to be closed; -1: none.
        data: Of the data file.
        """
        super().__init__(0, first, None, also=-1 if data is None else data.number)
        self.data = data  # open as long as somebody may sync it


class Checkpoints:
    """Those of one data file, one at a time."""

    def __init__(self, file: LsmFile) -> None:
        self._file = file
        self._connection = 0
        self._step: CheckpointSync | None = None
        self._has_header = False
        self._side = -1  # descriptor of the journal that replaces the present one, -1: none

    @property
    def under_way(self) -> bool:
        """Whether nothing may be written to the data file."""
        return self._step is not None and self._connection == self._file.connection

    def next(self, synced: SyncTicket | None = None) -> CheckpointSync | None:
        """Return what is to be synced next.

        Args:
            synced: What was returned before, if that is done now; else a checkpoint begins, if one is due.
        """
        if synced is None:
            return None if self.under_way or not self._file.is_checkpoint_due else self._begin()
        if synced is not self._step or self._step is None or not self.under_way:
            return None  # the file was opened anew meanwhile
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
            return self._begin()  # somebody had to write meanwhile
        self._has_header = True
        folder = os.open(self._file.path.parent, os.O_RDONLY | os.O_CLOEXEC) if is_replaced else -1
        self._step = CheckpointSync(folder, self._file.data)
        return self._step
