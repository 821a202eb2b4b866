"""Copies of a partition: the primary's streams and the backup's log.

Owns: the operations that each backup has, the shared log of a backup and its primary, and transfers of whole copies.

Entry points: ``primary.PartitionReplication`` at the primary, with a ``progress.BackupProgress`` for each backup;
``backup.PartitionBackup`` at a backup.

Invariant: an operation is committed when it is synced at every in-sync copy of this partition_epoch. A backup's state
is never ahead of the commit index.

May import: storage.state, wire.
"""
