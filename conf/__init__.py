"""Settings: models with units, defaults and bounds; their sources; logs and metrics of a process.

Owns: Every setting of an operator, and its description.

Entry points: ``settings`` loads a tier's configuration, ``logs`` and ``metrics`` set up a process, ``errors.UserError``
is a one-line error for an operator.

Invariant: Every setting has a reader, one default and one place. A wrong value is refused at start with file, name and
remedy.

May import: no other package of StrataMQ.
"""
