"""Hashes of passwords for a while, at the lowest priority: ``python -m tests.e2e.hash_burner SECONDS [--idle]``.

The cheapest program that takes from an edge's neighbours what a flood of wrong passwords takes: one core's worth of
argon2id with the parameters of the cluster's users, and nothing of the edge. With ``--idle`` the kernel runs it only
where nobody else wants the core. Prints how many were computed. With ``--asked`` in the place of a time it computes one
for each byte that comes, and answers it with a byte.
"""

import contextlib
import os
import sys
import time

from access.identity.passwords import make_record, verify


def main() -> None:
    """Burn."""
    record = make_record(b"good", bytes(16))
    if "--idle" in sys.argv:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(19)
    if "--asked" in sys.argv:
        with contextlib.suppress(ConnectionError):  # whoever asks may go before the last answer
            while os.read(0, 1):
                verify(record, b"guess")
                os.write(1, b"x")
        return
    until, hashes = time.monotonic() + float(sys.argv[1]), 0
    while time.monotonic() < until:
        verify(record, b"guess")
        hashes += 1
    print(hashes)


if __name__ == "__main__":
    main()
