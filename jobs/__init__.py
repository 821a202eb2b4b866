"""Spark jobs over exported tables: compact, audit, report, restore points, prune.

Owns: Reading a manifest and its runs, the merge of runs, rules of the audit, and the page that shows its findings.

Doors: ``cli`` names the jobs; ``compact`` and ``audit`` are the two that operators schedule.

Always holds: A job writes new files and publishes a manifest last; it never changes a file of an export. Without
PySpark every module still imports.

May import: wire.sstable and conf.
"""
