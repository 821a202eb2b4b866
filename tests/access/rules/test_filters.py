"""Containment and overlap of filters against every topic of a small alphabet."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from access.rules.filters import FilterTree, covers, overlaps
from mqtt.topics import matches
from tests.access.rules.reference import FILTERS

# A literal that is in no filter is among the topics' levels: a wildcard matches more than all literals of a test.
# The empty name is not a topic; here it is one, so that "/#" and "+" differ by their levels only.
LEVELS = ("", "a", "$x", "other")
TOPICS = ["/".join(levels) for depth in range(1, 5) for levels in itertools.product(LEVELS, repeat=depth)]
SMALL = ["a", "$x", "", "+"]
SHORT = [
    "/".join([*levels, *tail])
    for depth in range(3)
    for levels in itertools.product(SMALL, repeat=depth)
    for tail in ((), ("#",))
    if levels or tail
]
SHORT.remove("")


def reached(topic_filter: str) -> frozenset[str]:
    return frozenset(topic for topic in TOPICS if matches(topic_filter, topic))


REACHED = {name: reached(name) for name in SHORT}


def test_every_pair_of_short_filters() -> None:
    """Check A5: containment by brute force."""
    for one, other in itertools.product(SHORT, repeat=2):
        got = covers(one.split("/"), other.split("/")), overlaps(one.split("/"), other.split("/"))
        assert got == (REACHED[one] >= REACHED[other], bool(REACHED[one] & REACHED[other])), (one, other)


@settings(max_examples=300, deadline=None)
@given(FILTERS, FILTERS)
def test_longer_filters(one: str, other: str) -> None:
    """The same for up to five levels, where a ``b`` is a literal that no topic of the other has."""
    ones, others = reached(one.replace("b", "other")), reached(other.replace("b", "other"))
    levels = one.replace("b", "other").split("/"), other.replace("b", "other").split("/")
    if max(map(len, levels)) > 4:
        return
    assert covers(*levels) == (ones >= others), (one, other)
    assert overlaps(*levels) == overlaps(*reversed(levels)) == bool(ones & others), (one, other)


@settings(max_examples=200, deadline=None)
@given(st.lists(FILTERS, max_size=12), FILTERS)
def test_tree_finds_what_overlaps(names: list[str], topic_filter: str) -> None:
    """Each overlapping filter once, and no other."""
    tree: FilterTree[int] = FilterTree()
    for number, name in enumerate(names):
        tree.add(name.split("/"), number)
    wanted = [number for number, name in enumerate(names) if overlaps(name.split("/"), topic_filter.split("/"))]
    assert sorted(tree.overlapping(topic_filter.split("/"))) == wanted


@pytest.mark.parametrize(
    ("outer", "inner"),
    [("a/#", "a"), ("a/#", "a/+/#"), ("+/#", "#"), ("#", "+/#"), ("$SYS/#", "$SYS/a/+"), ("+", "a"), ("a/+", "a/+")],
)
def test_contained(outer: str, inner: str) -> None:
    assert covers(outer.split("/"), inner.split("/"))


@pytest.mark.parametrize(
    ("outer", "inner"),
    [("a/+/#", "a/#"), ("#", "$SYS/#"), ("+/a", "$SYS/a"), ("a/b", "a/+"), ("a/+", "a/#"), ("+", "#"), ("a", "a/#")],
)
def test_not_contained(outer: str, inner: str) -> None:
    assert not covers(outer.split("/"), inner.split("/"))
