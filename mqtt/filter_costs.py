"""Admission of filters to a trie: the cost of matching is bounded when a filter is added, never at a match.

A few hundred filters that mix "+" and one literal make a match touch thousands of nodes; 100 000 realistic filters stay
below 20. One session may use a part of the bound, and all together the whole. Existing filters stay, even above a
bound: they may have been stored before there was one. Source: docs/adr/0022-cost-of-filters.md.
"""

from collections import OrderedDict
from collections.abc import Collection, Sequence

from mqtt.topic_trie import TopicTrie
from mqtt.topics import SHARE_PREFIX, parse_shared

__all__ = ["SESSION_VISITS_MAX", "TRIE_VISITS_MAX", "FilterCosts"]

SESSION_VISITS_MAX = 256  # nodes that a match may touch because of one session's filters
TRIE_VISITS_MAX = 10_000  # and because of all filters of a trie: a fraction of a millisecond
# Cached costs of sessions: used only when the trie has become expensive. Computing one takes 1 to 2 ms for 1000
# filters.
SESSIONS_KEPT = 64


class FilterCosts:
    """Admits filters of new subscriptions to one trie, which holds those without a share name."""

    def __init__(self, trie: TopicTrie) -> None:
        self._trie = trie
        self._sessions: OrderedDict[int, TopicTrie] = OrderedDict()  # session -> its filters, shared ones included

    def __len__(self) -> int:
        """Return the number of cached sessions."""
        return len(self._sessions)

    def admits(self, session: int, held: Collection[str], names: Sequence[str]) -> list[bool]:
        """Return for each filter of a SUBSCRIBE, ``$share`` included, whether the caller may, and then must, add it.

        Args:
            session: Its number.
            held: The session's filters so far, which are always admitted again.
            names: The filters.
        """
        batch = TopicTrie()  # admitted in this call, not in the trie yet
        admitted: list[str] = []
        verdicts = []
        for name in names:
            verdict = name in held or self._admits(session, held, admitted, name, batch)
            verdicts.append(verdict)
            if verdict and ("+" in name or "#" in name):
                admitted.append(name)
                own = self._sessions.get(session)
                if own is not None:
                    own.add(_plain(name), name, name)
        return verdicts

    def _admits(self, session: int, held: Collection[str], admitted: list[str], name: str, batch: TopicTrie) -> bool:
        topic_filter = _plain(name)
        if "+" not in topic_filter and "#" not in topic_filter:
            return True
        if not name.startswith(SHARE_PREFIX):  # only the routers' tries have shared ones
            # The visits of two tries together are never more than their sum.
            visits = self._trie.visits() + batch.visits_with(name)
            raises = self._trie.visits_with(name) > self._trie.visits()
            if raises and visits > TRIE_VISITS_MAX:
                return False
            if visits > SESSION_VISITS_MAX and not self._session_admits(session, held, admitted, topic_filter):
                return False
            batch.add(name, name, name)
            return True
        return self._session_admits(session, held, admitted, topic_filter)

    def _session_admits(self, session: int, held: Collection[str], admitted: list[str], topic_filter: str) -> bool:
        own = self._sessions.get(session)
        if own is None:
            own = self._sessions[session] = TopicTrie()
            for name in (*held, *admitted):
                own.add(_plain(name), name, name)
            if len(self._sessions) > SESSIONS_KEPT:
                self._sessions.popitem(last=False)
        self._sessions.move_to_end(session)
        visits = own.visits_with(topic_filter)
        return visits <= SESSION_VISITS_MAX or visits <= own.visits()

    def removed(self, session: int, name: str) -> None:
        """Update after a session removed a filter."""
        own = self._sessions.get(session)
        if own is not None:
            own.remove(_plain(name), name)

    def forget(self, session: int) -> None:
        """Update after a session ended."""
        self._sessions.pop(session, None)


def _plain(name: str) -> str:
    shared = parse_shared(name)
    return name if shared is None else shared[1]
