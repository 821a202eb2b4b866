"""The head of a queue with a long past: a session that consumed a million messages reads its next ones.

The rows of consumed messages are deleted in batches and remain as tombstones until compaction; the session row has
the head, so a read starts behind them. For comparison, the same read from the start of the
session's range, which scans all of them.

    python -m bench.queue_head [--consumed 1000000]
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from storage.state import keys
from storage.state.rows import QueueEntry, encode_entry
from storage.store.settings import StoreSettings
from storage.store.store import Store

SESSION = 1
WAITING = 512
BATCH = 4_000


def main() -> int:
    """Print the cost of reading the head, wall and CPU time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--consumed", type=int, default=1_000_000)
    consumed = parser.parse_args().consumed
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Path(folder) / "store", "cluster", "node", StoreSettings())
        fill(store, consumed)
        for what, first in (("from the head", consumed + 1), ("from the start of the range", 1)):
            wall_ms, cpu_ms = read(store, first)
            print(f"{consumed} consumed, {what}: {WAITING} entries in {wall_ms:.2f} ms, {cpu_ms:.2f} ms of processor")
        store.close()
    return 0


def fill(store: Store, consumed: int) -> None:
    """Queue and consume, as a session that keeps up does; some entries wait at the end."""
    for start in range(1, consumed + WAITING + 1, BATCH):
        numbers = range(start, min(start + BATCH, consumed + WAITING + 1))
        store.write([(key(number), encode_entry(QueueEntry(number, b"a/b", b"x" * 64))) for number in numbers])
        store.write([(key(number), None) for number in numbers if number <= consumed])


def key(session_seq: int) -> bytes:
    """Return the key of one entry."""
    return keys.queue_key(0, SESSION, session_seq)


def read(store: Store, first: int, rounds: int = 21) -> tuple[float, float]:
    """Return the median of milliseconds, wall clock and processor, that a page takes."""
    _, stop = keys.session_range(0, keys.QUEUE, SESSION)
    walls, processors = [], []
    for _ in range(rounds):
        wall, processor = time.perf_counter(), time.process_time()
        assert len(store.scan(key(first), stop, WAITING)) == WAITING
        processors.append(time.process_time() - processor)
        walls.append(time.perf_counter() - wall)
    return sorted(walls)[rounds // 2] * 1e3, sorted(processors)[rounds // 2] * 1e3


if __name__ == "__main__":
    sys.exit(main())
