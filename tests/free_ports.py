"""Ports for programs that cannot choose one by themselves, from where `stratamq up` takes its own.

Linux gives no outgoing connection one of these, and no other test or `up` chooses one that is held here: what is free
now is free when the program binds it. A port that was looked for by binding to 0 was taken by a client of another test
now and then.
"""

import random

from stratamq.local_plan import CHOSEN_PORTS, hold_port

__all__ = ["free_port", "free_ports"]

_given: set[int] = set()  # by this process
_random = random.SystemRandom()


def free_port() -> int:
    """Return a port that nobody has, and that this process has not been given before."""
    for port in _random.sample(CHOSEN_PORTS, len(CHOSEN_PORTS)):
        if port not in _given and hold_port(port):
            _given.add(port)
            return port
    raise RuntimeError(f"no free port between {CHOSEN_PORTS.start} and {CHOSEN_PORTS.stop}")


def free_ports(count: int) -> list[int]:
    """Return so many of them."""
    return [free_port() for _ in range(count)]
