"""Sessions of a partition: who owns a client ID, and which filters it has.

Owns: Opening, takeover and end of sessions, wills, CONNECTs that were carried out, subscriptions and their routes.

Doors: ``ownership`` decides who owns a client ID, ``wills`` which will is published, ``subscriptions`` keeps filters
and their routes.

Always holds: One connection at a time may act for a client ID, by owner_epoch. A filter counts as subscribed after its
routes stand at every shard.

May import: storage.state, storage.messages, storage.rights.
"""
