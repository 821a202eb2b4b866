"""Exported tables: schema, manifest, reading, and the acknowledgement ledger.

Owns: The columns and row kinds of a run, the CRC of a row, the digest of a store, and records of the ledger.

Entry points: ``writer`` writes runs, ``manifest`` lists them, ``run_reader`` reads and merges without Spark.

Always holds: A row that does not match its CRC is a finding, not data. Names in a manifest stay inside its folder.

May import: conf and wire.decoding; jobs import no other part of wire.
"""
