"""Rights of a partition: whose its sessions are, and which rules granted their filters.

Owns: The user that a client ID belongs to; the number of the rules that granted a session's filters.

Doors: ``owners`` says whether a user may act for what another one owns, ``filters`` what an edge is told of filters
that its rules did not grant.

Always holds: What has an owner is never another user's. A name that is deleted and made again is another user.
No filter counts as granted by rules that did not grant it.

May import: storage.state.
"""
