"""The topic index against the reference matcher and a sorted dict."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mqtt.topic_index
from mqtt import LocalProtocolError, matches
from mqtt.topic_index import TopicIndex
from tests.mqtt.test_topic_trie import FILTERS
from tests.mqtt.test_topics import MATCHES

# "!" sorts below "$" and "/", a control character below all but the separator
TOPICS = (
    st.lists(st.sampled_from(["", "a", "b", "a!", "\x01", "$x", "!"]), min_size=1, max_size=4)
    .map("/".join)
    .filter(bool)
)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Spread a few topics over several chunks of the sorted list."""
    monkeypatch.setattr(mqtt.topic_index, "CHUNK_MAX", 4)
    yield


@pytest.mark.parametrize(("topic_filter", "yes", "no"), MATCHES, ids=[row[0] for row in MATCHES])
def test_topic_index_agrees_with_the_match_table(topic_filter: str, yes: str, no: str) -> None:
    index: TopicIndex[int] = TopicIndex()
    topics = (yes + " " + no).split()
    for number, topic in enumerate(topics):
        assert index.add(topic, number)
    want = sorted((t for t in topics if matches(topic_filter, t)), key=lambda t: t.split("/"))
    assert [topic for topic, _ in index.match(topic_filter)] == want


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(TOPICS, st.booleans()), max_size=40), FILTERS, TOPICS, st.integers(1, 5))
def test_topic_index_agrees_with_a_dict(
    changes: list[tuple[str, bool]], topic_filter: str, after: str, visits: int
) -> None:
    """Adding, removing, matching, resuming and paging."""
    index: TopicIndex[int] = TopicIndex()
    model: dict[str, int] = {}
    for number, (topic, adding) in enumerate(changes):
        if adding:
            assert index.add(topic, number) == (topic not in model)
            model[topic] = number
        else:
            assert index.remove(topic) == (model.pop(topic, None) is not None)
        assert index.get(topic) == model.get(topic)
        assert (topic in index, len(index)) == (topic in model, len(model))
    want = sorted(((t, v) for t, v in model.items() if matches(topic_filter, t)), key=lambda pair: pair[0].split("/"))
    assert list(index.match(topic_filter)) == want
    behind = [pair for pair in want if pair[0].split("/") > after.split("/")]
    assert list(index.match(topic_filter, after=after)) == behind
    paged, resume, _ = index.page(topic_filter, visits_max=visits)
    while resume is not None:
        more, resume, looked_at = index.page(topic_filter, after=resume, visits_max=visits)
        assert len(more) <= looked_at <= visits
        paged += more
    assert paged == want


def test_topic_index_skips_topics_without_a_match(monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter with few matches must not visit each topic."""
    monkeypatch.setattr(mqtt.topic_index, "CHUNK_MAX", 1024)
    index: TopicIndex[int] = TopicIndex()
    for site in range(20):
        for device in range(500):
            index.add(f"site/{site:02}/{device:03}", device)
    found, resume, looked_at = index.page("site/+/007", visits_max=61)  # at most a miss, a hit and a miss for each site
    assert ([value for _, value in found], resume) == ([7] * 20, None)
    assert 20 < looked_at < 61


def test_topic_index_changes_during_an_iteration() -> None:
    """Topics removed and added meanwhile do not disturb it."""
    index: TopicIndex[int] = TopicIndex()
    for number in range(5000):
        index.add(f"t/{number:05}", number)
    seen = []
    for topic, number in index.match("t/+"):
        seen.append(number)
        index.remove(topic)
        index.add(f"u/{number}", number)
    assert seen == list(range(5000))
    assert not list(index.match("t/#"))


@pytest.mark.parametrize("topic", ["", "a\0b"])
def test_topic_index_refuses_an_invalid_topic(topic: str) -> None:
    """[MQTT-4.7.3-1]; [MQTT-4.7.3-2] reserves the separator of keys."""
    with pytest.raises(LocalProtocolError):
        TopicIndex[int]().add(topic, 1)
