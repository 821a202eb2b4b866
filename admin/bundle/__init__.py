"""Support bundles: what somebody who helps from outside needs to see, and nothing that they must not.

Owns: What is hidden in a bundle (``hiding``), and the archive with its bounds and manifest (``archive``).

Doors: ``hiding.Hider``, ``archive.write_archive``.

Always holds: Nothing is written that did not pass the hider. No queue, retained message or trace is asked for: there
are no payloads. Of what does not fit, the oldest lines of logs go first, and the manifest says how many.

May import: conf and the standard library.
"""
