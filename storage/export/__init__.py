"""Copies of partitions as SSTables, and back.

Owns: a consistent snapshot of a partition in slices, exports of a running cluster or a stopped store, imports, and
their commands.

Entry points: ``export_run`` makes a complete export, ``importing`` loads one, ``exporter`` serves requests at a
running node.

Invariant: the manifest is written last: without it an export does not exist. No file is written outside
``storage.export_dir``.

May import: storage.state, storage.store, access.operators, wire.
"""
