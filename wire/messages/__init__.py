"""Formats between nodes: control messages, batches, HELLO, replication, the ClusterMap and its pages.

Owns: Each message with its tag, fields and ranges, and the codecs of all of them.

Doors: ``control`` is the union of the control messages with its codec, ``batches`` the binary frames, ``replication``
the copies' frames, ``cluster_map`` the map, ``hello`` the identities.

Always holds: Tags and layouts change only with the protocol version. No exception but ``Unreadable`` leaves a decoder.

May import: mqtt for topics, wire.decoding.
"""
