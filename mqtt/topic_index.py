"""Matching a topic filter against many topic names: the inverse of the trie.

Stores topic names in order and finds those that match a filter, page by page: retained messages on SUBSCRIBE, cached
topics to invalidate. Topics are in one sorted list, level by level. A match jumps from one possible topic to the next,
so its cost depends on the results and not on the stored topics. Source: MQTT 5.0 section 4.7.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

from mqtt.errors import LocalProtocolError

__all__ = ["MatchPage", "TopicIndex"]

Value = TypeVar("Value")

CHUNK_MAX = 1024  # keys in one piece of the sorted list; an insertion moves at most this many
PAGE_VISITS = 1024  # topics visited in one step: at most a few milliseconds


class MatchPage(NamedTuple, Generic[Value]):
    """Result of one step of a match."""

    found: list[tuple[str, Value]]  # topic, value
    after: str | None  # topic to resume after; None at the end
    visits: int  # visited topics


class TopicIndex(Generic[Value]):
    """Topic names with one value each, in the order of their levels (``a`` < ``a/b`` < ``a!``)."""

    def __init__(self) -> None:
        # A key is the topic with U+0000, which no topic may have, for "/": so keys sort as lists of levels do.
        self._values: dict[str, Value] = {}
        self._chunks: list[list[str]] = [[]]
        self._lows: list[str] = [""]  # no key of chunk i is below _lows[i]

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, topic: str) -> bool:
        return topic.replace("/", "\0") in self._values

    def add(self, topic: str, value: Value) -> bool:
        """Store value under topic, replacing an older one; return True if the topic is new."""
        if not topic or "\0" in topic:
            raise LocalProtocolError("empty topic or U+0000 in it [MQTT-4.7.3-1] [MQTT-4.7.3-2]")
        key = topic.replace("/", "\0")
        if key in self._values:
            self._values[key] = value
            return False
        self._values[key] = value
        position = bisect_right(self._lows, key) - 1
        chunk = self._chunks[position]
        chunk.insert(bisect_left(chunk, key), key)
        if len(chunk) > CHUNK_MAX:
            half = len(chunk) // 2
            self._chunks.insert(position + 1, chunk[half:])
            self._lows.insert(position + 1, chunk[half])
            del chunk[half:]
        return True

    def remove(self, topic: str) -> bool:
        """Remove a topic; return whether it existed."""
        key = topic.replace("/", "\0")
        if key not in self._values:
            return False
        del self._values[key]
        position = bisect_right(self._lows, key) - 1
        chunk = self._chunks[position]
        del chunk[bisect_left(chunk, key)]
        if not chunk and len(self._chunks) > 1:
            del self._chunks[position], self._lows[position]
            self._lows[0] = ""
        return True

    def get(self, topic: str) -> Value | None:
        """Return the value of a topic, or None."""
        return self._values.get(topic.replace("/", "\0"))

    def match(self, topic_filter: str, *, after: str | None = None) -> Iterator[tuple[str, Value]]:
        """Iterate over (topic, value) of the topics that match a valid filter, in order.

        The index may change meanwhile: the iteration sees changes that are more than a page ahead.

        Args:
            after: Start after this topic, which need not exist: resumes an earlier iteration.
        """
        while True:
            found, after, _ = self.page(topic_filter, after=after)
            yield from found
            if after is None:
                return

    def topics(self, after: str | None, count: int) -> tuple[list[str], str | None]:
        """Return up to ``count`` topics after one, in order, and the topic to resume after; None at the end."""
        seek = "" if after is None else after.replace("/", "\0") + "\0"
        found: list[str] = []
        position = bisect_right(self._lows, seek) - 1
        at = bisect_left(self._chunks[position], seek)
        while position < len(self._chunks):
            found += self._chunks[position][at : at + count - len(found)]
            if len(found) == count:
                break
            position, at = position + 1, 0
        names = [key.replace("\0", "/") for key in found]
        return names, names[-1] if len(names) == count else None

    def page(self, topic_filter: str, *, after: str | None = None, visits_max: int = PAGE_VISITS) -> MatchPage[Value]:
        """Return the results of ``match`` within ``visits_max`` visited topics, 1 or more.

        Pages bound the time of one step. The number of results does not: ``+/+/x`` may visit many topics for few
        results.
        """
        wanted = topic_filter.split("/")
        seek = _first_key(wanted)
        if after is not None:
            seek = max(seek, after.replace("/", "\0") + "\0")  # the smallest key after it
        found: list[tuple[str, Value]] = []
        position = bisect_right(self._lows, seek) - 1
        at = bisect_left(self._chunks[position], seek)
        for visits in range(visits_max):
            if at == len(self._chunks[position]):
                position, at = position + 1, 0
                if position == len(self._chunks) or not self._chunks[position]:
                    return MatchPage(found, None, visits)
            key = self._chunks[position][at]
            jump = _next_key(wanted, key)
            if jump is None:
                return MatchPage(found, None, visits + 1)
            if jump == key:
                found.append((key.replace("\0", "/"), self._values[key]))
            if len(jump) <= len(key) and key.startswith(jump):
                at += 1
            else:
                position = bisect_right(self._lows, jump) - 1
                at = bisect_left(self._chunks[position], jump)
        return MatchPage(found, key.replace("\0", "/"), visits_max)


def _first_key(wanted: list[str]) -> str:
    """Return a lower bound of the matching keys: the levels before the first wildcard."""
    literal: list[str] = []
    for level in wanted:
        if level in ("+", "#"):
            break
        literal.append(level)
    return "\0".join(literal)


def _next_key(wanted: list[str], key: str) -> str | None:
    """Compare a key with the filter.

    Returns:
        The key itself if it matches; a greater key, before which there is no match; a prefix of the key for "the next
        key"; None if no later key matches.
    """
    given = key.split("\0")
    if wanted[0] in ("+", "#") and key.startswith("$"):
        return "%"  # after all that begin with "$" [MQTT-4.7.2-1]
    plus = -1  # the last level where another value could still match
    for position, level in enumerate(wanted):
        if level == "#":
            return key
        if position == len(given):
            return ""  # too short, but a longer key with this prefix may match
        if level == "+":
            plus = position
        elif given[position] < level:
            return "\0".join((*given[:position], level))
        elif given[position] > level:
            return None if plus < 0 else "\0".join(given[: plus + 1]) + "\1"
    if len(given) > len(wanted):
        return "\0".join(given[: len(wanted)]) + "\1"  # after the subtree, where "\1" may already be a character
    return key
