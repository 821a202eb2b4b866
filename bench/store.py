"""Measure the store alone: group commit, queues with a long past, restart.

    python -m bench.store [--folder DIR] [--seconds 2] [--runs 5] [--consumed 1000000]

Each result is a median with the slowest and fastest run. The latency of a bare ``fdatasync`` on the same disk is
printed beside every rate with syncs, because on a busy machine it is the scheduler's tick rather than the disk.
"""

import argparse
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from storage.state.keys import queue_key
from storage.store.group_committer import GroupCommitter
from storage.store.settings import GroupCommitSettings, StoreSettings
from storage.store.store import Store

SETTINGS = StoreSettings(free_space_floor_bytes=0, free_space_floor_percent=0)
CONSUMED_PER_BATCH = 256  # acks are deleted in batches of 64 to 256


@contextmanager
def _store(folder: Path) -> Iterator[Store]:
    path = Path(tempfile.mkdtemp(dir=folder))
    store = Store.open(path / "store.lsm", "bench", "bench", SETTINGS)
    try:
        yield store
    finally:
        store.close()
        shutil.rmtree(path)


def raw_sync_ms(folder: Path, rounds: int = 100) -> tuple[float, float]:
    """Return the median and P99 of a bare fdatasync after a 512-byte write."""
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        taken = []
        for number in range(rounds):
            os.pwrite(file.fileno(), bytes(512), number * 512)
            started = time.perf_counter()
            os.fdatasync(file.fileno())
            taken.append((time.perf_counter() - started) * 1e3)
    return statistics.median(taken), sorted(taken)[int(rounds * 0.99)]


def group_commit(folder: Path, writers: int, rows: int, seconds: float) -> tuple[float, float, float, float, float]:
    """Return acks/s, P50 and P99 in ms, rows per sync and syncs/s of writers that each wait for their own ack."""
    latencies: list[float] = []
    settings = GroupCommitSettings()

    async def writer(number: int, committer: GroupCommitter, end: float) -> None:
        sequence = 0
        while (started := time.perf_counter()) < end:
            keys = [queue_key(1, number, sequence + index) for index in range(rows)]
            sequence += rows
            await committer.wait_durable(committer.submit([(key, bytes(150)) for key in keys]))
            latencies.append(time.perf_counter() - started)

    async def main(store: Store) -> GroupCommitter:
        committer = GroupCommitter(store, lambda _: None, settings)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(committer.run)
            async with trio.open_nursery() as writing:
                for number in range(writers):
                    writing.start_soon(writer, number, committer, time.perf_counter() + seconds)
            nursery.cancel_scope.cancel()
        return committer

    with _store(folder) as store:
        committer = trio.run(main, store)
    latencies.sort()
    p50, p99 = latencies[len(latencies) // 2] * 1e3, latencies[int(len(latencies) * 0.99)] * 1e3
    return len(latencies) / seconds, p50, p99, committer.rows / committer.syncs, committer.syncs / seconds


def _consume(store: Store, session: int, messages: int) -> None:
    """Queue and consume messages of one session, as delivery does: inserts at the tail, deletes in batches."""
    for start in range(0, messages, 1000):
        store.write([(queue_key(1, session, seq), bytes(150)) for seq in range(start, start + 1000)])
        for first in range(start, start + 1000, CONSUMED_PER_BATCH):
            last = min(first + CONSUMED_PER_BATCH, start + 1000)
            store.write([(queue_key(1, session, seq), None) for seq in range(first, last)])


def _timed_ms(call: Callable[[], object], rounds: int) -> list[float]:
    taken = []
    for _ in range(rounds):
        started = time.perf_counter()
        call()
        taken.append((time.perf_counter() - started) * 1e3)
    return sorted(taken)


def head_read(folder: Path, consumed: int) -> None:
    """A session with many consumed messages behind it: read the head by its stored key, and from the prefix."""
    with _store(folder) as store:
        started = time.perf_counter()
        _consume(store, 1, consumed)
        churn = consumed / (time.perf_counter() - started)
        store.write([(queue_key(1, 1, consumed + index), b"live") for index in range(10)])
        head, stop = queue_key(1, 1, consumed), queue_key(1, 2, 0)
        by_head = _timed_ms(lambda: store.scan(head, stop, 10), 2000)
        by_prefix = _timed_ms(lambda: store.scan(queue_key(1, 1, 0), stop, 10), 5)
        print(f"head of a session with {consumed} consumed: queue+consume {churn:,.0f} msg/s without sync")
        print(
            f"  from the head key  p50 {by_head[1000]:.4f} ms  p99 {by_head[1980]:.4f}  max {by_head[-1]:.3f}  (bar: 1)"
        )
        print(f"  from the prefix    p50 {by_prefix[2]:.3f} ms (never done; what tombstones cost)")


def churn(folder: Path, sessions: int, messages: int) -> None:
    """Queue-like load over many sessions: each message queued, head read, deleted in batches, groups synced."""
    rng, tails, heads = random.Random(1), [0] * sessions, [0] * sessions
    reads: list[float] = []
    with _store(folder) as store:
        started = time.perf_counter()
        for group in range(messages // 200):
            batch: list[tuple[bytes, bytes | None]] = []
            for _ in range(200):
                session = rng.randrange(sessions)
                batch.append((queue_key(1, session, tails[session]), bytes(150)))
                tails[session] += 1
            session = max(range(sessions), key=lambda each: tails[each] - heads[each])
            last = min(heads[session] + CONSUMED_PER_BATCH, tails[session])
            batch += [(queue_key(1, session, seq), None) for seq in range(heads[session], last)]
            heads[session] = last
            store.write(batch)
            if group % 4 == 0:
                store.begin_sync().run()
            head, stop = queue_key(1, session, heads[session]), queue_key(1, session + 1, 0)
            reads += _timed_ms(lambda head=head, stop=stop: store.scan(head, stop, 1), 1)  # type: ignore[misc]
        rate = messages / (time.perf_counter() - started)
        reads.sort()
        print(f"churn, {sessions} sessions: {rate:,.0f} msg/s, head read p50 {reads[len(reads) // 2]:.4f} ms", end="")
        print(f" p99 {reads[int(len(reads) * 0.99)]:.4f}, file {store.path.stat().st_size / 1e6:.0f} MB")


def restart(folder: Path, rows: int) -> None:
    """Scan all rows in slices, and open after a clean close."""
    with _store(folder) as store:
        for start in range(0, rows, 1000):
            store.write([(queue_key(2, number, 0), bytes(150)) for number in range(start, start + 1000)])
        started = time.perf_counter()
        found, head = 0, b""
        while part := store.scan(head, None, 2000):
            found, head = found + len(part), part[-1][0] + b"\x00"
        scanned = found / (time.perf_counter() - started)
        path = store.path
        store.close()
        started = time.perf_counter()
        Store.open(path, "bench", "bench", SETTINGS).close()
        print(
            f"{rows} rows: sliced scan {scanned:,.0f} rows/s, open+close {(time.perf_counter() - started) * 1e3:.1f} ms"
        )


def main() -> None:
    """Print every result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="on the disk to be measured, not a tmpfs")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--consumed", type=int, default=1_000_000)
    options = parser.parse_args()
    for writers, rows in ((1, 1), (10, 1), (100, 1), (100, 3), (1000, 1)):
        probe = raw_sync_ms(options.folder)
        runs = sorted(group_commit(options.folder, writers, rows, options.seconds) for _ in range(options.runs))
        acks, p50, p99, per_sync, syncs = runs[len(runs) // 2]
        print(f"group commit, {writers:4} writers x {rows} rows: {acks:9,.0f} acks/s", end="")
        print(f" ({runs[0][0]:,.0f}-{runs[-1][0]:,.0f})  p50 {p50:.2f} p99 {p99:.2f} ms", end="")
        print(
            f"  {per_sync:.0f} rows/sync  {syncs:.0f} syncs/s  [raw fdatasync p50 {probe[0]:.2f} p99 {probe[1]:.2f} ms]"
        )
    head_read(options.folder, options.consumed)
    churn(options.folder, 10, 300_000)
    churn(options.folder, 10_000, 300_000)
    restart(options.folder, 300_000)


if __name__ == "__main__":
    main()
