"""How long a test waits for an expected event.

A wait ends as soon as its event occurs, so only a failure takes this long, and a machine that is busy, or pauses
for some seconds, causes no failure. ``test_patience.py`` finds shorter waits.
"""

__all__ = ["PATIENCE_S"]

PATIENCE_S = 120.0
