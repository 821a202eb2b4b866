"""Ports for programs that need a given one, from the range of `stratamq up`.

Linux assigns none of these to outgoing connections, and no other test or `up` uses a held one: a free port
is still free when the program binds it. A port found by binding to 0 was sometimes taken by another test's client.
"""

import random

from stratamq.local_plan import CHOSEN_PORTS, hold_port

__all__ = ["free_port", "free_ports"]

_given: set[int] = set()  # by this process
_random = random.SystemRandom()


def free_port() -> int:
    """Return a free port that this process did not get before."""
    for port in _random.sample(CHOSEN_PORTS, len(CHOSEN_PORTS)):
        if port not in _given and hold_port(port):
            _given.add(port)
            return port
    raise RuntimeError(f"no free port between {CHOSEN_PORTS.start} and {CHOSEN_PORTS.stop}")


def free_ports(count: int) -> list[int]:
    """Return so many of them."""
    return [free_port() for _ in range(count)]
