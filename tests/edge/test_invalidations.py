"""Filters that void cached answers: no matching answer stays in use, and few other topics are requested again."""

import itertools
import random

import pytest

from edge.routes import invalidations
from edge.routes.invalidations import Invalidations
from mqtt.topic_trie import TopicTrie

HOSTILE = ["/".join(head) + "/a" * 21 for head in itertools.product("a+", repeat=10)]


def order(void: Invalidations, *filters: str) -> None:
    void.begin()
    for name in filters:
        void.add(name)
    void.complete()
    void.end()


def test_expensive_filters_void_only_topics_of_their_depth() -> None:
    """A client with expensive filters causes no new requests for the short topics of others."""
    void = Invalidations()
    deep = "/".join("a" * 31)
    before = void.done
    order(void, *HOSTILE)
    assert void.is_void(deep, before) and not void.has_filters, "too expensive to keep"
    for topic in ("honest/x", "a/a", deep + "/a"):
        assert not void.is_void(topic, before), topic
    order(void, *(name + "/#" for name in HOSTILE))
    assert void.is_void(deep + "/a/b", before) and void.is_void(deep, before) and not void.is_void("honest/x", before)
    void.void_all()
    assert void.is_void("honest/x", before)


@pytest.mark.parametrize("seed", range(20))
def test_answers_matched_by_a_filter_are_void(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For all limits and sweep states: an older answer is void, a newer one is valid."""
    monkeypatch.setattr(invalidations, "FILTERS_MAX", 12)
    monkeypatch.setattr(invalidations, "VISITS_MAX", 6)
    monkeypatch.setattr(invalidations, "LEVELS_MAX", 4)
    draw = random.Random(seed)
    void, taken, sweeping = Invalidations(), {}, 0
    topics = ["/".join(some) for size in range(1, 7) for some in itertools.product("ab", repeat=size)]
    for topic in topics:
        taken[topic] = void.done
    holds = set(topics)
    for _ in range(60):
        filters = []
        for _ in range(draw.randint(1, 4)):
            levels = [draw.choice("ab+") for _ in range(draw.randint(1, 6))]
            filters.append("/".join(levels + ["#"] * (draw.random() < 0.2)))
        order(void, *filters)
        trie = TopicTrie()
        for name in filters:
            trie.add(name, 0, 1)
        holds -= {topic for topic in holds if trie.match(topic)}
        for topic in topics:
            if topic not in holds:
                assert void.is_void(topic, taken[topic]), (filters, topic)
        for topic in draw.sample(topics, 20):
            taken[topic] = void.done
            holds.add(topic)
            assert not void.is_void(topic, void.done)
        if draw.random() < 0.3:
            sweeping = void.begin_sweep()
            for topic in topics:  # like the cache: void answers are removed and requested again, the rest was checked
                taken[topic] = max(taken[topic], sweeping)
            holds = set(topics)
            void.end_sweep()
