"""A process that serves a store like a storage node: commits of a loop, syncs of log and checkpoints on threads.

Run: python serving_child.py PATH NAMES; appends "serving" and "ended" to NAMES, where syncs are recorded as well.
"""

import sys
from pathlib import Path

import trio

from storage.store.group_committer import GroupCommitter
from storage.store.wal_store import WalStore
from tests.storage.commit_child import SETTINGS, brief_rows_of, newest_row, rows_of, smaller_steps

COMMITS = 400


async def _serve(store: WalStore) -> None:
    committer = GroupCommitter(store, lambda _: None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(committer.run)
        last = 0
        for number in range(2, COMMITS):
            last = committer.submit([*rows_of(number), *brief_rows_of(number), *newest_row(number)])
            if not number % 10:
                await committer.wait_durable(last)
        await committer.wait_durable(last)
        nursery.cancel_scope.cancel()


def main() -> None:
    """Serve for a while."""
    smaller_steps()
    path, names = Path(sys.argv[1]), Path(sys.argv[2])
    store = WalStore.open(path, "c", "n", SETTINGS)
    with names.open("a") as file:
        file.write("serving\n")
    trio.run(_serve, store)
    with names.open("a") as file:
        file.write("ended\n")
    store.close()


if __name__ == "__main__":
    main()
