"""Explanations: rows of several nodes in, one story out.

Owns: Why nothing reaches a client, who gets a topic, and what became of a message.

Doors: one function for each, ``client_story``, ``topic_story``, ``message_story``; all return a ``Story``.

Always holds: Pure functions: nothing is asked here, and only ``ledgers`` reads files. A story ends with the sources
that it had and those that it lacked, and it says nothing that no source says.

May import: the rows in ``wire.messages``, and ``admin.queries`` for the shapes that hold them.
"""
