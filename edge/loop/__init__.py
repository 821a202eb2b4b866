"""The compiled loop of the edge: sockets, packets, fan-out and acknowledgements, without a decision that needs the map.

Owns: Buffers, connections, Routes, outboxes to peers, acknowledgements under way, and the counters of all of them.

Doors: ``loop`` runs it, ``engine`` is what the core calls, ``handler.Handler`` is what it calls; ``options`` are its
bounds.

Always holds: The files are a ladder: parse, inbound, fanout, acks, deliver, outboxes, batches, records, buffers; each
calls only those below it. No clock is read and no dice are rolled here but by ``loop``. Every buffer has a bound. No
count falls below zero, which assertions check where modules are compiled in place (a wheel is built without them).

May import: wire and mqtt; nothing else of the edge. Every file also runs as plain Python.
"""
