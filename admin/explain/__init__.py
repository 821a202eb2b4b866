"""Explanations: combines rows of several nodes into one explanation.

Owns: Why a client receives no messages, which clients receive a topic, and the deliveries of a message.

Entry points: ``explain_client``, ``explain_topic``, ``explain_message``; each returns an ``Explanation``.

Invariant: Pure functions: no queries here, and only ``ledgers`` reads files. An explanation lists its sources and the
missing ones, and states nothing without a source.

May import: the rows in ``wire.messages``, and ``admin.queries`` for the types that hold them.
"""
