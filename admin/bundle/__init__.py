"""Support bundles: diagnostic data for a supporter outside, without secrets.

Owns: The masking of a bundle (``masking``), and the archive with its bounds and manifest (``archive``).

Entry points: ``masking.Hider``, ``archive.write_archive``.

Invariant: All content is masked before it is written. Queues, retained messages and traces are not collected, so there
are no payloads. If the bundle is too large, the oldest log lines are removed first; the manifest counts them.

May import: conf and the standard library.
"""
