"""Uses a store that may have damaged pages, in a process of its own: ``python damaged_child.py PATH SEED``.

It exits with DAMAGED if the store reports damage, and by a signal if the library crashes.
"""

import random
import sys
from pathlib import Path

from storage.store.errors import StoreDamaged
from storage.store.settings import StoreSettings
from storage.store.store import Store

DAMAGED = 65
STEPS = 60


def main(path: Path, seed: int) -> int:
    rng = random.Random(seed)
    store = None
    try:
        store = Store.open(path, "c", "n", StoreSettings(free_space_floor_bytes=0, free_space_floor_percent=0))
        for _ in range(STEPS):
            step(store, rng)
    except StoreDamaged:
        return DAMAGED
    finally:
        if store is not None:
            store.close()
    return 0


def step(store: Store, rng: random.Random) -> None:
    """Run a random operation of a storage node."""
    kind = rng.choices(("write", "flush", "work", "get", "scan"), (6, 1, 1, 1, 1))[0]
    if kind == "write":
        store.write([(key(rng), rng.randbytes(rng.randrange(20, 300))) for _ in range(50)])
    elif kind == "get":
        for _ in range(20):
            store.get(key(rng))
    elif kind == "scan":
        store.scan(key(rng), None, rng.randrange(1, 500))
    else:
        {"flush": store.flush, "work": store.work}[kind]()


def key(rng: random.Random) -> bytes:
    return b"\x00\x01q%06d" % rng.randrange(4000)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
