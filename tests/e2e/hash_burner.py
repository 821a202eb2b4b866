"""Hash passwords for a time, at the lowest priority: ``python -m tests.e2e.hash_burner SECONDS [--idle]``.

The program uses as much CPU time as a flood of wrong passwords, without an edge: one core of argon2id with the
parameters of the cluster's users. With ``--idle`` the kernel runs it only on an idle core. It prints the number
of hashes. With ``--asked`` instead of a time it computes one hash for each input byte, and answers with a byte.
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
        with contextlib.suppress(ConnectionError):  # the requester may close before the last answer
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
