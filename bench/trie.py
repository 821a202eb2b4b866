"""A million subscriptions in the trie: time per match, time per change, bytes per subscription.

    python bench/trie.py [--subscriptions N] [--pure]

A tenth of the filters has a wildcard; topics have five levels and reach up to four entries. The bar: 5 us per match,
compiled. Bytes are the growth of the resident set, the filter strings counted apart (sessions hold the same objects).
"""

import argparse
import gc
import os
import random
import statistics
import sys
import time
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

MATCHES = 200_000  # per round
ROUNDS = 5


def resident_bytes() -> int:
    """Resident set of this process now (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def topic_filters(count: int, rng: random.Random) -> list[str]:
    """Return distinct filters over sites, lines and devices; each tenth has a wildcard and overlaps a concrete one."""
    filters = []
    for number in range(count):
        device = number // 30 * 30 + 1 if number % 10 == 0 else number  # three wildcard filters meet in one device
        topic = ["plant", f"s{device % 100}", f"l{device // 100 % 100}", f"d{device}", "state"]
        if number % 10 == 0:
            kind = number // 10 % 3
            if kind == 0:
                topic[2] = "+"
            elif kind == 1:
                topic[4] = "+"
            else:
                topic[4:] = ["#"]
        filters.append("/".join(topic))
    rng.shuffle(filters)
    return filters


def topics(subscriptions: int, count: int, rng: random.Random) -> list[str]:
    """Return topics of random devices: half of them have four matching filters, most others one, a few none."""
    names = []
    for _ in range(count):
        device = rng.randrange(subscriptions)
        if rng.random() < 0.5:
            device = device // 30 * 30 + 1
        names.append(f"plant/s{device % 100}/l{device // 100 % 100}/d{device}/state")
    return names


def load(pure: bool) -> ModuleType:
    if pure:
        from tests.mqtt.test_topic_trie import PURE

        return PURE
    import mqtt.topic_trie

    return mqtt.topic_trie


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--subscriptions", type=int, default=1_000_000)
    parser.add_argument("--pure", action="store_true", help="measure the module as plain Python")
    options = parser.parse_args()
    module = load(options.pure)
    rng = random.Random(1)
    gc.disable()
    filters = topic_filters(options.subscriptions, rng)
    keys = list(range(len(filters)))
    text = sum(map(sys.getsizeof, filters))
    before = resident_bytes()
    trie = module.TopicTrie()
    start = time.perf_counter()
    for key in keys:
        trie.add(filters[key], key, key)
    added = time.perf_counter() - start
    grown = resident_bytes() - before
    names = topics(len(filters), MATCHES, rng)
    hits = [len(trie.match(name)) for name in names]
    rounds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for name in names:
            trie.match(name)
        rounds.append((time.perf_counter() - start) / MATCHES * 1e6)
    start = time.perf_counter()
    for key in keys:
        trie.remove(filters[key], key)
    removed = time.perf_counter() - start
    print(f"module             {Path(str(module.__file__)).name}")
    print(f"subscriptions      {len(filters)}, {sum('+' in f or '#' in f for f in filters)} with a wildcard")
    print(f"match              {statistics.median(rounds):.2f} us (median of {ROUNDS}; max {max(rounds):.2f})")
    print(f"results per topic  mean {statistics.mean(hits):.2f}, max {max(hits)}")
    print(f"add / remove       {added / len(filters) * 1e6:.2f} / {removed / len(filters) * 1e6:.2f} us")
    print(f"memory             {grown / len(filters):.0f} bytes per subscription")
    print(f"filter strings     {text / len(filters):.0f} bytes per subscription besides")
    print(f"left               {len(trie)} entries, {len(list(trie.filters()))} filters")


if __name__ == "__main__":
    main()
