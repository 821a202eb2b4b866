"""One node's LSM store: transactions, syncs, page checksums, damage detection, and error handling.

Owns: the files of the store and the marker files beside it; group commit; quarantined stores.

Entry points: ``store.Store`` opens, reads and commits; ``group_committer`` runs commits and syncs; ``errors`` defines
the required reaction to each error.

Invariant: no operation is acknowledged after a failed sync. A store that lacks acknowledged operations does not serve.

May import: conf, wire's plain types and the keys of storage.state; nothing else of storage.
"""
