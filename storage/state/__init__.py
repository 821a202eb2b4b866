"""One partition: its state, the rows that hold it in the store, and the operation being built.

Owns: Keys and rows, durable sessions in memory, the operation under way and the outputs behind it, the partition's half
of the ledger.

Doors: ``partition.Partition`` is the state that other parts change; ``keys`` and ``rows`` are the format on disk.

Always holds: An output leaves behind its operation, never before. A row decodes to what was encoded, or is refused.

May import: wire and mqtt; nothing else of storage.
"""
