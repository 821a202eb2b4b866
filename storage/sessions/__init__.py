"""Sessions of a partition: owners of client IDs, and subscriptions.

Owns: opening, takeover and end of sessions, wills, processed CONNECTs, subscriptions and their routes.

Entry points: ``ownership`` decides which connection owns a client ID, ``wills`` which will is published,
``subscriptions`` stores filters and their routes.

Invariant: one connection at a time may act for a client ID, by owner_epoch. A filter is subscribed once its routes are
registered at every shard.

May import: storage.state, storage.messages, storage.rights.
"""
