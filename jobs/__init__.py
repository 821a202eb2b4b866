"""Spark jobs over exported tables: compact, audit, report, restore points, prune.

Owns: reading a manifest and its runs, the merge of runs, rules of the audit, and the page with its findings.

Entry points: ``cli`` names the jobs; operators schedule ``compact`` and ``audit``.

Invariant: a job writes new files and publishes a manifest last; it never changes a file of an export. Every module
imports without PySpark.

May import: wire.sstable and conf.
"""
