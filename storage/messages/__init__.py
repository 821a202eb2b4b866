"""Messages of a partition: taken once, queued, pushed to connections, finished.

Owns: Repeats and their windows, targets, shared bodies, queues out, identifiers of QoS 2 in, retained messages, copies
for another member.

Doors: ``delivery`` takes a message, ``origins`` tells a repeat, ``outbound`` pushes and counts what comes back,
``retained`` keeps one value per topic.

Always holds: A message is taken once, whatever is sent again. It is written before it is pushed. Every queue has a
bound.

May import: storage.state.
"""
