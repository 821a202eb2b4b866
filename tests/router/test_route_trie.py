"""A shard's routes: exact with a bounded cost, and coarse where hostile filters would exceed the bound."""

import itertools
import random

from mqtt.topics import matches
from router.routes.trie import ROUTE_VISITS_MAX, Key, RouteTrie, Value


def test_coarse_answers_are_supersets() -> None:
    """Random adds and removals with a small bound: every matching sender is found, and groups exactly."""
    rng = random.Random(5)
    trie = RouteTrie(visits_max=12)
    held: dict[tuple[str, Key], Value] = {}
    coarse = 0
    for _ in range(4000):
        if rng.random() < 0.55 or not held:
            levels = [rng.choice("+abc") for _ in range(rng.randrange(1, 6))] + ["#"] * (rng.random() < 0.3)
            topic_filter = "/".join(levels)
            sender = ("", rng.randrange(4))
            if rng.random() < 0.3:
                key: Key = (*sender, "g")
                value: Value = (*sender, f"g/{topic_filter}", rng.randrange(9))
            else:
                key = value = sender
            trie.add(topic_filter, key, value)
            held[topic_filter, key] = value
        else:
            name = rng.choice(list(held))
            del held[name]
            trie.remove(*name)
        coarse = max(coarse, trie.coarse)
        topic = "/".join(rng.choice("abc") for _ in range(rng.randrange(1, 6)))
        found = trie.match(topic)
        wanted = [value for (topic_filter, _), value in held.items() if matches(topic_filter, topic)]
        assert {value for value in found if len(value) == 2} >= {value for value in wanted if len(value) == 2}
        assert sorted(v for v in found if len(v) == 4) == sorted(v for v in wanted if len(v) == 4)
    assert coarse > 10
    for name in held:
        trie.remove(*name)
    assert trie.coarse == 0
    assert trie.match("a/b") == []


def test_match_cost_is_bounded_for_hostile_filters() -> None:
    """16 384 filters of every mix reach the bound; further entries are coarse, and exact again below the bound."""
    trie = RouteTrie()
    filters = ["/".join(mix) + "/a/a" for mix in itertools.product("a+", repeat=14)]
    for number, topic_filter in enumerate(filters):
        trie.add(topic_filter, ("", number), ("", number))
    assert trie.visits() <= ROUTE_VISITS_MAX
    assert 0 < trie.coarse < len(filters)
    topic = "/".join("a" * 16)
    assert set(trie.match(topic)) == {("", number) for number in range(len(filters))}
    trie.add("plant/+/state", ("edge", -1), ("edge", -1))  # an honest filter stays exact
    assert ("edge", -1) not in trie.match("plant/x/other")
    for number, topic_filter in enumerate(filters[:13_000]):
        trie.remove(topic_filter, ("", number))
    assert trie.coarse == 0
    assert len(trie.match(topic)) == len(filters) - 13_000
