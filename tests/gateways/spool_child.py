"""A process that commits to a spool until it is killed: python spool_child.py PATH; it prints each acknowledged number.

Transaction n puts row n, replaces the row of the last number, and deletes row n - 10: the last number determines the
expected rows. Three tasks commit concurrently, so that transactions carry several callers' writes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import trio

from gateways.spool import SpoolFailed, SpoolFile
from gateways.spool_rows import Delete, Put, Write
from gateways.spool_thread import Spool

KEPT = 10
LAST = b"last"
FAILED_EXIT = 7


def value_of(number: int) -> bytes:
    """Return the value of a row, of varying length up to several pages."""
    return (b"%d " % number) * (1 + number * 37 % 700)


def writes_of(number: int) -> list[Write]:
    """Return the transaction of a number."""
    key = number.to_bytes(8)
    writes: list[Write] = [Put("message", key, value_of(number)), Put("fact", LAST, key)]
    if number > KEPT:
        writes.append(Delete("message", (number - KEPT).to_bytes(8)))
    return writes


def expected_rows(last: int) -> list[tuple[bytes, bytes]]:
    """Return the rows of kind message after a number."""
    return [(number.to_bytes(8), value_of(number)) for number in range(max(1, last - KEPT + 1), last + 1)]


async def _run(spool: Spool, last: int) -> None:
    numbers = iter(range(last + 1, 1 << 62))

    async def work() -> None:
        while True:
            number = next(numbers)
            await spool.commit(writes_of(number))
            os.write(1, b"%d\n" % number)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(work)


def main() -> None:
    spool = Spool(SpoolFile(Path(sys.argv[1]), "test", 1 << 30))
    last = dict(spool.load("fact")).get(LAST, bytes(8))
    try:
        trio.run(_run, spool, int.from_bytes(last))
    except* SpoolFailed:
        sys.exit(FAILED_EXIT)


if __name__ == "__main__":
    main()
