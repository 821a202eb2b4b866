"""Frames of other nodes: for which partition each is, whether it may go there now, and which part carries it out.

Owns: The way of a message, a request or an acknowledgement from its frame to its partition, or into a waiting room.

Doors: ``publishing`` takes messages, ``requests`` what edges ask of one partition or of all, ``control`` the rest.

Always holds: Nobody who may not send something reaches a partition with it. A request is carried out by the primary of
its epoch, waits in a bounded room, or is refused aloud.

May import: storage.state, storage.messages, storage.sessions, storage.hosting, access.operators.
"""
