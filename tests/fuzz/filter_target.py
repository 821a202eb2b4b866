"""Fuzz target of expensive filters: the cost of a match is known, bounded, and the same in both forms.

An input is a program: each instruction adds, removes or matches one filter of few different levels, for one of four
sessions, so that mutation finds tries whose matches are expensive.
"""

from mqtt.filter_costs import SESSION_VISITS_MAX, TRIE_VISITS_MAX, FilterCosts
from mqtt.topic_trie import TopicTrie
from mqtt.topics import matches
from tests.mqtt.test_topic_trie import PURE

__all__ = ["FILTERS", "filters"]

INSTRUCTIONS_MAX = 400
LEVELS = ("a", "+", "a", "b", "+", "a", "", "$x")

FILTERS = (
    bytes(byte for number in range(32) for byte in (0x28, *(number >> bit & 1 for bit in range(10))))
    + b"\x2b"
    + bytes(10),
    b"\x0c\0\1\1\x0d\0\1\1\x0e\0\1\1\x0f\0\0\0",
    bytes(byte for number in range(20) for byte in (0x6C, number, 1, 2, 3)),
)


def filters(data: bytes) -> None:
    """Carry out a program of filters."""
    trie, pure = TopicTrie(), PURE.TopicTrie()
    costs = FilterCosts(trie)
    held: dict[int, set[str]] = {session: set() for session in range(4)}
    at = 0
    for _ in range(INSTRUCTIONS_MAX):
        if at >= len(data):
            break
        verb, count, multi = data[at] & 3, (data[at] >> 2 & 15) + 1, data[at] & 0x40
        levels = [LEVELS[byte % len(LEVELS)] for byte in data[at + 1 : at + 1 + count]] or ["a"]
        session = data[at] >> 7 | verb & 2
        at += 1 + count
        if verb == 3:
            topic = "/".join("a" if level == "+" else level for level in levels) or "a"
            wanted = sorted(own for own, names in held.items() for name in names if matches(name, topic))
            assert sorted(trie.match(topic)) == sorted(pure.match(topic)) == wanted
            continue
        name = "/".join(levels + ["#"] * bool(multi)) or "+"
        if verb == 2:
            assert trie.remove(name, session) == pure.remove(name, session)
            held[session].discard(name)
            costs.removed(session, name)
        elif all(costs.admits(session, held[session], [name])):
            foretold = trie.visits_with(name)
            held[session].add(name)
            assert trie.add(name, session, session) == pure.add(name, session, session)
            assert trie.visits() == foretold
        assert trie.visits() == pure.visits() <= TRIE_VISITS_MAX
    for names in held.values():
        own = TopicTrie()
        for name in names:
            own.add(name, 0, 0)
        assert own.visits() <= SESSION_VISITS_MAX or trie.visits() <= SESSION_VISITS_MAX
