"""Rights of a partition: owners of its sessions, and the rules that granted their filters.

Owns: the user that owns a client ID; the number of the rules that granted a session's filters.

Entry points: ``owners`` decides whether a user may act for another one's session; ``filters`` lists filters that an
edge has to authorize.

Invariant: an owned session never passes to another user. A name that is deleted and created again is another user. No
filter counts as granted by rules that did not grant it.

May import: storage.state.
"""
