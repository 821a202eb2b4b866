"""``python -m bench.datagram_relay --to HOST:PORT --loss 0.05``: relay datagrams both ways, and lose some of them.

Prints its port. Each sender has its own socket towards the target, so the target can distinguish them. It replaces
netem in measurements of datagram nodes.
"""

from __future__ import annotations

import argparse
import random
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["running_relay"]

BYTES = 2048
BATCH = 64
BUFFER_BYTES = 4 * 1024 * 1024


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        made.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
    made.setblocking(False)
    return made


def relay(target: tuple[str, int], loss: float, seed: int) -> None:
    """Relay without end."""
    chance = random.Random(seed).random
    front, poll = _socket(), select.epoll()
    front.bind(("127.0.0.1", 0))
    print(front.getsockname()[1], flush=True)
    poll.register(front, select.EPOLLIN)
    ways: dict[tuple[str, int], socket.socket] = {}
    back: dict[int, tuple[socket.socket, tuple[str, int]]] = {}
    while True:
        for number, _ in poll.poll():
            way = back.get(number)
            for _ in range(BATCH):
                try:
                    data, sender = (front if way is None else way[0]).recvfrom(BYTES)
                except (BlockingIOError, ConnectionRefusedError):
                    break
                if chance() < loss:
                    continue
                if way is not None:
                    front.sendto(data, way[1])
                    continue
                towards = ways.get(sender)
                if towards is None:
                    towards = ways[sender] = _socket()
                    towards.connect(target)
                    back[towards.fileno()] = (towards, sender)
                    poll.register(towards, select.EPOLLIN)
                towards.send(data)


@contextmanager
def running_relay(target: str, loss: float) -> Iterator[int]:
    """Run a relay in its own process for the length of a block; return its port."""
    line = [sys.executable, "-m", "bench.datagram_relay", "--to", target, "--loss", str(loss)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", required=True)
    parser.add_argument("--loss", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    host, _, port = options.to.rpartition(":")
    relay((host, int(port)), options.loss, options.seed)


if __name__ == "__main__":
    main()
