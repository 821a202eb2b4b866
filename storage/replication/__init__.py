"""Copies of a partition: the primary's streams and the backup's log.

Owns: Which operations each backup has, what a backup and its primary share, and transfers of whole copies.

Doors: ``primary.Replication`` at the primary, with a ``progress.Progress`` for each backup; ``backup.Replica`` at a
backup.

Always holds: An operation is committed when it is synced at every copy in sync at this partition_epoch. A backup's
state never runs ahead of the commit index.

May import: storage.state, wire.
"""
