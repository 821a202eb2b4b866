"""Messages of a partition: accepted once, queued, pushed to connections, acknowledged.

Owns: duplicate detection, targets, shared bodies, outbound queues, inbound QoS 2 identifiers, retained messages,
redispatched copies.

Entry points: ``delivery`` accepts a message, ``origins`` detects a repeat, ``outbound`` pushes and processes
acknowledgements, ``retained`` stores one value per topic.

Invariant: a message is accepted once, however often it is sent. It is written before it is pushed. Every queue has a
bound.

May import: storage.state.
"""
