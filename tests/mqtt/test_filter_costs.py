"""Admission of filters: hostile ones are refused by their cost, realistic ones are accepted."""

import itertools
import random

from mqtt.filter_costs import SESSION_VISITS_MAX, SESSIONS_KEPT, TRIE_VISITS_MAX, FilterCosts
from mqtt.topic_trie import TopicTrie

HOSTILE = ["/".join(mix) + "/a" * 21 for mix in itertools.islice(itertools.product("a+", repeat=10), 1000)]


class Sessions:
    """Sessions that add admitted filters, like an owner."""

    def __init__(self) -> None:
        self.trie = TopicTrie()
        self.costs = FilterCosts(self.trie)
        self.held: dict[int, set[str]] = {}

    def subscribe(self, session: int, *names: str) -> list[bool]:
        held = self.held.setdefault(session, set())
        verdicts = self.costs.admits(session, held, names)
        for name, verdict in zip(names, verdicts, strict=True):
            if verdict:
                held.add(name)
                if not name.startswith("$share/"):
                    self.trie.add(name, session, session)
        return verdicts

    def unsubscribe(self, session: int, name: str) -> None:
        self.held[session].remove(name)
        self.costs.removed(session, name)
        self.trie.remove(name, session)

    def visits_of(self, session: int) -> int:
        own = TopicTrie()
        for name in self.held[session]:
            own.add(name.removeprefix("$share/g/"), name, name)
        return own.visits()


def test_filter_costs_bound_one_session() -> None:
    """In one SUBSCRIBE, in many, and with shared subscriptions."""
    for size in (1, 7, 1000):
        for prefix in ("", "$share/g/"):
            sessions = Sessions()
            names = [prefix + name for name in HOSTILE]
            for at in range(0, 1000, size):
                sessions.subscribe(1, *names[at : at + size])
            # In one packet of many filters the bound is compared with the sum of two tries, which is slightly strict.
            assert SESSION_VISITS_MAX - 31 <= sessions.visits_of(1) <= SESSION_VISITS_MAX
            assert 1 < len(sessions.held[1]) < 1000
            assert sessions.subscribe(1, "other/+/state", "plain/topic") == [True, True]


def test_filter_costs_bound_a_trie() -> None:
    """Existing filters, and filters without additional cost, are always admitted."""
    sessions = Sessions()
    rng = random.Random(1)
    for session in range(200):
        names = ["/".join(rng.choice("a+") for _ in range(14)) + f"/a{session % 2}" for _ in range(40)]
        sessions.subscribe(session, *names)
    assert TRIE_VISITS_MAX - SESSION_VISITS_MAX <= sessions.trie.visits() <= TRIE_VISITS_MAX
    known = next(iter(sessions.held[0]))
    assert sessions.subscribe(0, known) == [True]
    assert sessions.subscribe(1000, known, "honest/+/state", "site/7/#", "a/b") == [True] * 4


def test_filter_costs_follow_removals() -> None:
    """After many rounds of adding and removing, all filters are admitted as at first."""
    sessions = Sessions()
    first = sum(sessions.subscribe(1, *HOSTILE))
    for _ in range(3):
        for name in list(sessions.held[1]):
            sessions.unsubscribe(1, name)
        assert sessions.trie.visits() == 1
        assert sum(sessions.subscribe(1, *HOSTILE)) == first


def test_filter_costs_cache_is_bounded() -> None:
    """Only the most recent sessions are cached; an evicted one gets the same result."""
    sessions = Sessions()
    sessions.subscribe(1, *HOSTILE)
    refused = next(name for name in HOSTILE if name not in sessions.held[1])
    for session in range(2, 2 + 2 * SESSIONS_KEPT):
        sessions.subscribe(session, *HOSTILE[:10])
        assert sessions.visits_of(session) <= SESSION_VISITS_MAX
    assert len(sessions.costs) <= SESSIONS_KEPT
    assert sessions.subscribe(1, refused) == [False]


def test_filter_costs_accept_realistic_filters() -> None:
    """40 sessions of 1 000 realistic wildcard filters."""
    sessions = Sessions()
    for session in range(40):
        names = [f"plant/s{session}/+/d{number}/state" for number in range(400)]
        names += [f"+/d{session}-{number}/alarm" for number in range(300)]
        names += [f"$share/g/jobs/{session}/{number}/#" for number in range(300)]
        assert all(sessions.subscribe(session, *names))
    assert sessions.trie.visits() < 20
