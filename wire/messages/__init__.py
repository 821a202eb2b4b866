"""Formats between nodes: control messages, batches, HELLO, replication, the ClusterMap and its pages.

Owns: Each message with its tag, fields and ranges, and the codecs of all of them.

Entry points: ``control`` is the union of the control messages with its codec, ``batches`` the binary frames,
``replication`` the copies' frames, ``cluster_map`` the map, ``hello`` the identities.

Always holds: Tags and layouts change only with the protocol version. Decoders raise only ``Unreadable``.

May import: mqtt for topics, wire.decoding.
"""
