"""One partition: its state in memory, its rows in the store, and the operation being built.

Owns: keys and rows, durable sessions in memory, the current operation and its outputs, the partition's records in the
ledger.

Entry points: ``partition.Partition`` is the state that other packages change; ``keys`` and ``rows`` are the format on
disk.

Invariant: an output leaves after its operation is committed, never before. A row decodes to the encoded value or is
rejected.

May import: wire and mqtt; nothing else of storage.
"""
