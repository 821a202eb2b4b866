"""Honest clients in their own process: logins by TLS at a rate, each a handshake, a CONNECT and an end.

    python -m tests.e2e.tls_logins PORT AUTHORITY RATE NAME

Runs until stdin is closed, and prints the results and the seconds. A late login is made at once, so
delays do not reduce the rate.
"""

import contextlib
import json
import ssl
import sys
import time
from collections import Counter

from tests.e2e.flooded_logins import honest_logins

TASKS = 24  # that wait for each other: a login takes as long as the machine is busy


def main() -> None:
    """Log in until it is enough."""
    port, authority, rate, name = int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4]
    secure = ssl.create_default_context(cafile=authority)
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        outcomes = [
            stack.enter_context(honest_logins(port, rate / TASKS, f"{name}-{task}", secure)) for task in range(TASKS)
        ]
        print("began", flush=True)
        sys.stdin.read()
        seconds = time.monotonic() - began
    print(json.dumps({"seconds": seconds, "outcomes": sum(outcomes, Counter())}))


if __name__ == "__main__":
    main()
