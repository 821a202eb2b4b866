"""How long a test waits for what must happen.

Whoever waits goes on as soon as it has happened, so only a failure takes so long, and a machine that is busy with other
things, or stands still for some seconds, is no failure. ``test_patience.py`` looks for waits that are shorter.
"""

__all__ = ["PATIENCE_S"]

PATIENCE_S = 120.0
