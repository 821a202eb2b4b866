"""The compiled loop of the edge: sockets, packets, fan-out and acknowledgements, without decisions that need the map.

Owns: Buffers, connections, Routes, outboxes to peers, in-flight acknowledgements, and their counters.

Entry points: ``loop`` runs it, the core calls ``broker_loop``, which calls ``handler.Handler``; ``options`` are its
limits.

Invariants: The files form layers: parse, inbound, fanout, acks, deliver, outboxes, batches, records, buffers; each
calls only lower ones. Only ``loop`` reads a clock or random numbers. Every buffer has a bound. No count falls below
zero; assertions check that where modules are compiled in place (a wheel is built without them).

May import: wire and mqtt; nothing else of the edge. Every file also runs as plain Python.
"""
