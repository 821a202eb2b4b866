"""A process that commits until it is killed, and the expected content of its store.

Commit n puts rows that follow from n alone and deletes those of commit n - WINDOW. So the newest commit number of a
recovered store determines its content: a lost, torn or half-applied transaction is a difference. Short-lived rows,
deleted after BRIEF commits, and one that each commit rewrites pass through several memtables. Some commits have a row
larger than a region of the log.

Checkpoints of a logged store run step by step; each sync runs some commits after its request.

Run: python commit_child.py PATH [SYNC_EVERY [logged]]; prints the number of each acknowledged commit.
"""

import random
import sys
from pathlib import Path

from storage.store import lsm_file, page_sums, wal_store, write_ahead
from storage.store.errors import StoreFatal
from storage.store.protocol import SyncTicket
from storage.store.settings import StoreSettings
from storage.store.store import Store
from storage.store.wal_store import WalStore

SETTINGS = StoreSettings(free_space_floor_bytes=0, free_space_floor_percent=0, marker_sync_commits=8)
WINDOW = 40  # commits whose rows exist
STEP = 3  # commits between two steps of a checkpoint
LARGE_EVERY = 37  # commits
LARGE_BYTES = 450_000
BRIEF = 4  # commits whose short-lived rows exist
SYNC_FAILED_EXIT = 42


def rows_of(transaction_no: int) -> list[tuple[bytes, bytes]]:
    """Return the rows that a commit puts; commit 1 is the store's own."""
    if transaction_no < 2:
        return []
    rng = random.Random(transaction_no)
    head = b"\x00\x01q" + transaction_no.to_bytes(8, "big")
    sizes = [rng.choice((10, 200, 1500)) for _ in range(rng.randrange(1, 60))]
    rows = [(head + bytes((row,)), rng.randbytes(size)) for row, size in enumerate(sizes)]
    if transaction_no % LARGE_EVERY == 0:
        rows.append((head + b"\xff", transaction_no.to_bytes(9, "big") * (LARGE_BYTES // 9)))
    return rows


def brief_rows_of(transaction_no: int) -> list[tuple[bytes, bytes]]:
    """Return the rows of a commit that are deleted soon."""
    if transaction_no < 2:
        return []
    head = b"\x00\x02q" + transaction_no.to_bytes(8, "big")
    return [(head + bytes((row,)), bytes(200)) for row in range(5)]


def newest_row(transaction_no: int) -> list[tuple[bytes, bytes]]:
    """Return the row that each commit writes again."""
    return [(b"\x00\x02a", transaction_no.to_bytes(8, "big"))] if transaction_no >= 2 else []


def expected_rows(transaction_no: int) -> list[tuple[bytes, bytes]]:
    """Return all rows of a store with this newest commit."""
    lasting = list(range(max(2, transaction_no - WINDOW + 1), transaction_no + 1))
    rows = [row for number in lasting for row in rows_of(number)]
    return rows + newest_row(transaction_no) + [row for number in lasting[-BRIEF:] for row in brief_rows_of(number)]


def take_step(store: WalStore, step: SyncTicket | None, number: int) -> SyncTicket | None:
    """Begin a checkpoint if one is due, or run a step of the current one."""
    if step is None:
        return store.checkpoint()
    if number % STEP:
        return step
    step.run()
    return store.checkpoint(step)


def smaller_steps() -> None:
    """Flush, merge and checkpoint often, so that kills hit them."""
    lsm_file.OPTIONS.update(autoflush=256, autocheckpoint=512)
    wal_store.GENERATION_BYTES = 100_000
    write_ahead.REGION_BYTES = 400_000
    page_sums.JOURNAL_BYTES_MAX = -20_000  # rewritten every few checkpoints


def main() -> None:
    """Commit, sync, acknowledge, without end."""
    smaller_steps()
    sync_every = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    try:
        kind = WalStore if sys.argv[3:] == ["logged"] else Store
        store = kind.open(Path(sys.argv[1]), "c", "n", SETTINGS)
        step: SyncTicket | None = None
        while True:
            number = store.transaction_no + 1
            puts = [*rows_of(number), *brief_rows_of(number), *newest_row(number)]
            deletes = [(key, None) for key, _ in rows_of(number - WINDOW) + brief_rows_of(number - BRIEF)]
            assert store.write([*puts, *deletes]) == number
            if number % 170 == 0 or (number % 17 == 0 and kind is Store):
                store.flush()
            if number % 5 == 0:
                store.work()
            if isinstance(store, WalStore):
                step = take_step(store, step, number)
            if number % sync_every == 0:
                store.begin_sync().run()
                store.acked(number)
                print(number, flush=True)
    except StoreFatal as error:
        print(error, file=sys.stderr)
        sys.exit(SYNC_FAILED_EXIT)


if __name__ == "__main__":
    main()
