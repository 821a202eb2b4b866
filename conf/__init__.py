"""Settings: models with units, defaults and bounds; their sources; logs and metrics of a process.

Owns: Every setting that an operator may write, and the texts that explain them.

Doors: ``settings`` loads a tier's configuration, ``logs`` and ``metrics`` set up a process, ``errors.UserError`` is one
line for a human.

Always holds: Every setting has a reader, one default and one place. A wrong value is refused at start with file, name
and remedy.

May import: nothing of ours.
"""
