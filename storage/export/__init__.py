"""Copies of partitions as SSTables, and back.

Owns: A consistent cut of a partition in slices, exports of a running cluster or a stopped store, imports, and the verbs
for them.

Doors: ``export_run`` makes a whole export, ``importing`` brings one back, ``export_desk`` answers at a running node.

Always holds: A manifest comes last: without it an export does not exist. Nothing is written outside
``storage.export_dir``.

May import: storage.state, storage.store, access.operators, wire.
"""
