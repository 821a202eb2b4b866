"""One node's LSM store: transactions, syncs, page sums, damage, and what to do about each error.

Owns: Files of the store and the small ones beside it that tell what it must hold; group commit; stores that were put
aside.

Doors: ``store.Store`` opens, reads and commits; ``group_committer`` runs commits and syncs; ``errors`` names what a
caller must do.

Always holds: Nothing is acknowledged after a failed sync. A store that lacks what was acknowledged does not serve.

May import: conf, wire's plain types and the keys of storage.state; nothing else of storage.
"""
