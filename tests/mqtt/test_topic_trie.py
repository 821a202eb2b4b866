"""The trie against the reference matcher, compiled and as plain Python."""

import importlib.util
import os
import random
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import mqtt
import mqtt.topic_trie
from mqtt import matches
from tests.mqtt.test_topics import MATCHES


def load_pure() -> ModuleType:
    """Load topic_trie.py as a second, uncompiled module."""
    path = Path(mqtt.__file__).parent / "topic_trie.py"
    loader = SourceFileLoader("topic_trie_pure", str(path))
    spec = importlib.util.spec_from_loader("topic_trie_pure", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


PURE = load_pure()
BOTH = pytest.mark.parametrize("module", [mqtt.topic_trie, PURE], ids=["compiled", "pure"])


def test_topic_trie_is_compiled() -> None:
    """Otherwise the parameter "compiled" would test the uncompiled module."""
    if os.environ.get("STRATAMQ_PURE") != "1":
        assert not str(mqtt.topic_trie.__file__).endswith(".py"), "not compiled: run `make setup`"
    assert str(PURE.__file__).endswith(".py")


@BOTH
@pytest.mark.parametrize(("topic_filter", "yes", "no"), MATCHES, ids=[row[0] for row in MATCHES])
def test_topic_trie_agrees_with_the_match_table(module: ModuleType, topic_filter: str, yes: str, no: str) -> None:
    trie = module.TopicTrie()
    assert trie.add(topic_filter, "key", "value")
    for topic in (yes + " " + no).split():
        assert trie.match(topic) == ["value"] * matches(topic_filter, topic), topic


@BOTH
def test_topic_trie_add_replace_remove(module: ModuleType) -> None:
    """Return values report a filter's first and last entry; an equal key is replaced."""
    for topic_filter in ("a/b", "a/+", "a/#", "#", "+"):
        trie = module.TopicTrie()
        assert trie.add(topic_filter, 1, "one")
        assert not trie.add(topic_filter, 1, "uno")
        assert (len(trie), trie.get(topic_filter, 1)) == (1, "uno")
        assert not trie.add(topic_filter, 2, "two")
        assert not trie.add(topic_filter, 2, "due")
        assert not trie.add(topic_filter, 3, "three")
        assert sorted(trie.entries(topic_filter)) == [(1, "uno"), (2, "due"), (3, "three")]
        assert (len(trie), list(trie.filters())) == (3, [topic_filter])
        assert not trie.remove(topic_filter, 4)
        assert not trie.remove("other", 1)
        assert not trie.remove("other/+", 1)
        assert not trie.remove(topic_filter, 1)
        assert not trie.remove(topic_filter, 3)
        assert (trie.get(topic_filter, 1), trie.get(topic_filter, 2)) == (None, "due")
        assert trie.remove(topic_filter, 2)
        assert not trie.remove(topic_filter, 2)
        assert (len(trie), list(trie.filters()), trie.match("a/b"), trie.match("a")) == (0, [], [], [])


@BOTH
def test_topic_trie_match_is_not_deduplicated(module: ModuleType) -> None:
    """Each matching entry counts once, so one session may occur several times."""
    trie = module.TopicTrie()
    for topic_filter in ("a/b", "a/+", "+/b", "+/+", "#", "a/#", "+/#", "a/b/#", "+/b/#"):
        trie.add(topic_filter, "session", topic_filter)
    assert sorted(trie.match("a/b")) == sorted(trie.filters())


@BOTH
def test_topic_trie_long_topics_need_no_recursion(module: ModuleType) -> None:
    """A topic of 65 535 levels, with and without filters of that depth."""
    trie = module.TopicTrie()
    deep = "/" * 65_000
    trie.add(deep + "+", 1, "deep")
    trie.add("#", 1, "all")
    assert sorted(trie.match(deep + "x")) == ["all", "deep"]
    assert trie.remove(deep + "+", 1)
    assert list(trie.filters()) == ["#"]


@BOTH
def test_topic_trie_bounds_the_cost_of_hostile_filters_before_a_match(module: ModuleType) -> None:
    """Hostile filters (all mixes of "+" and a literal) raise the bound as they are added; a match never raises."""
    trie = module.TopicTrie()
    for bits in range(1000):
        topic_filter = "/".join(["+" if bits >> level & 1 else "a" for level in range(10)] + ["a"] * 21)
        foretold = trie.visits_with(topic_filter)
        trie.add(topic_filter, bits, bits)
        assert trie.visits() == foretold
    assert trie.visits() > 20_000
    assert len(trie.match("/".join("a" * 31))) == 1000


@BOTH
def test_topic_trie_realistic_filters_cost_little(module: ModuleType) -> None:
    """100 000 realistic wildcard filters stay far below the bounds."""
    trie = module.TopicTrie()
    for number in range(100_000):
        site, device = number % 100, number // 6
        kinds = [f"plant/s{site}/+/d{device}/state", f"plant/s{site}/l{device}/#", f"plant/+/l{device}/+/state"]
        kinds += [f"d/{device}/+", f"+/d{device}/alarm", f"{device}/#"]
        trie.add(kinds[number % 6], number, number)
    assert trie.visits() < 20


@BOTH
def test_topic_trie_removes_empty_nodes(module: ModuleType) -> None:
    """An emptied trie matches as cheaply as a new one."""
    trie = module.TopicTrie()
    filters = ["a/+/c", "a/+", "a/+/#", "+/+/+/d", "b/c/#", *(f"many/{number}/+" for number in range(40))]
    for topic_filter in filters:
        trie.add(topic_filter, 1, 1)
    assert trie.visits() > 3
    for topic_filter in filters:
        assert trie.remove(topic_filter, 1)
    assert trie.visits() == 1
    assert trie.match("a/b/c") == []


def real_visits(filters: set[str], topic: str) -> int:
    """Return the nodes that a match touches: prefixes of wildcard filters that match as many levels."""
    levels = topic.split("/")
    prefixes: set[tuple[str, ...]] = {()}
    for topic_filter in filters:
        wanted = [level for level in topic_filter.split("/") if level != "#"]
        prefixes.update(tuple(wanted[:count]) for count in range(1, len(wanted) + 1))
    return sum(
        len(prefix) <= len(levels) and all(want in ("+", level) for want, level in zip(prefix, levels, strict=False))
        for prefix in prefixes
    )


def most_visits(filters: set[str]) -> int:
    """Return the bound by its definition: 1 + that of "+" + the largest of a literal level."""
    below: dict[str, set[str]] = {}
    for topic_filter in filters:
        first, slash, rest = topic_filter.partition("/")
        if first != "#":
            below.setdefault(first, set()).update([rest] if slash else [])
    plus = most_visits(below.pop("+")) if "+" in below else 0
    return 1 + plus + max((most_visits(some) for some in below.values()), default=0)


@BOTH
@pytest.mark.parametrize("children", [5, 17, 40])
def test_topic_trie_bound_follows_many_children(module: ModuleType, children: int) -> None:
    """The largest literal child is exact after each change, with few children and with many."""
    rng = random.Random(children)
    trie = module.TopicTrie()
    held: set[str] = set()
    for step in range(1500):
        grows = step < 500 or (step < 1000 and rng.random() < 0.5)
        if grows or not held:
            levels = [f"c{rng.randrange(children)}"] + [rng.choice("+ab") for _ in range(rng.randrange(4))] + ["#"]
            topic_filter = "/".join(levels)
            foretold = trie.visits_with(topic_filter)
            trie.add(topic_filter, 1, 1)
            held.add(topic_filter)
            assert trie.visits() == foretold
        else:
            topic_filter = rng.choice(sorted(held))
            held.remove(topic_filter)
            assert trie.remove(topic_filter, 1)
        if step % 10 == 0:
            assert trie.visits() == most_visits(held)


LEVELS = st.sampled_from(["", "a", "b", "c", "$x"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = st.tuples(st.lists(LEVELS | st.just("+"), max_size=4), st.booleans()).map(
    lambda parts: "/".join(parts[0] + ["#"] * (parts[1] or not any(parts[0])))
)
KEYS = st.integers(0, 3)


class TrieMachine(RuleBasedStateMachine):
    """A dict is the model; every operation is compared, and matching with the reference matcher."""

    module: ModuleType = PURE

    def __init__(self) -> None:
        super().__init__()
        self.trie: Any = self.module.TopicTrie()
        self.model: dict[str, dict[int, int]] = {}
        self.counter = 0

    @rule(topic_filter=FILTERS, key=KEYS)
    def add(self, topic_filter: str, key: int) -> None:
        self.counter += 1
        assert self.trie.add(topic_filter, key, self.counter) == (topic_filter not in self.model)
        self.model.setdefault(topic_filter, {})[key] = self.counter

    @rule(topic_filter=FILTERS, key=KEYS)
    def remove(self, topic_filter: str, key: int) -> None:
        entries = self.model.get(topic_filter, {})
        there = entries.pop(key, None) is not None
        assert self.trie.remove(topic_filter, key) == (there and not entries)
        if not entries:
            self.model.pop(topic_filter, None)

    @rule(data=st.data())
    def remove_present(self, data: st.DataObject) -> None:
        if self.model:
            topic_filter = data.draw(st.sampled_from(sorted(self.model)))
            self.remove(topic_filter, data.draw(st.sampled_from(sorted(self.model[topic_filter]))))

    @rule(topic=TOPICS)
    def match(self, topic: str) -> None:
        want = [value for f, entries in self.model.items() if matches(f, topic) for value in entries.values()]
        assert sorted(self.trie.match(topic)) == sorted(want)
        assert self.trie.visits() >= real_visits(self.wildcards(), topic)

    @rule(topic_filter=FILTERS)
    def foretell(self, topic_filter: str) -> None:
        added = {topic_filter} if "+" in topic_filter or "#" in topic_filter else set()
        assert self.trie.visits_with(topic_filter) == most_visits(self.wildcards() | added)

    def wildcards(self) -> set[str]:
        return {topic_filter for topic_filter in self.model if "+" in topic_filter or "#" in topic_filter}

    @rule(topic_filter=FILTERS, key=KEYS)
    def get(self, topic_filter: str, key: int) -> None:
        assert self.trie.get(topic_filter, key) == self.model.get(topic_filter, {}).get(key)

    @invariant()
    def counts(self) -> None:
        assert len(self.trie) == sum(map(len, self.model.values()))
        assert sorted(self.trie.filters()) == sorted(self.model)
        assert self.trie.visits() == most_visits(self.wildcards())


class CompiledTrieMachine(TrieMachine):
    module = mqtt.topic_trie


TestPureTrie = TrieMachine.TestCase
TestPureTrie.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestCompiledTrie = CompiledTrieMachine.TestCase
TestCompiledTrie.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
