"""Pages of words of cores and members: cut to size; those of cores without what a neighbour's policy keeps away.

A filter whose topics may not come from a neighbour is not said to it, and one whose topics may not go to it is not
heard from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from gateways.federation.agent_context import AgentContext
from gateways.federation.filters import overlaps
from gateways.federation.messages import SubscriptionRequest, Topic, TopicCores

__all__ = ["cut_pages", "flood_page", "may_pass", "send_page"]

PAGE_BYTES = 256 * 1024
AnyWord = TypeVar("AnyWord", Topic, SubscriptionRequest)


def cut_pages(words: Iterable[AnyWord]) -> Iterator[tuple[AnyWord, ...]]:
    """Yield words in pages of at most some 256 KiB."""
    page: list[AnyWord] = []
    length = 0
    for word in words:
        page.append(word)
        more = sum(4 * len(each) for each in word.members) if isinstance(word, Topic) else len(word.digests)
        length += 4 * len(word.filter) + more + 32
        if length >= PAGE_BYTES:
            yield tuple(page)
            page, length = [], 0
    if page:
        yield tuple(page)


def may_pass(policy: tuple[str, ...], topic_filter: str) -> bool:
    """Return whether a policy lets some topic of a filter pass."""
    return "#" in policy or any(overlaps(each, topic_filter) for each in policy)


def flood_page(parts: AgentContext, page: TopicCores, source: str = "") -> None:
    """Send a page to each neighbour but the one that it came from."""
    if all("#" in at.policy.imports for at in parts.neighbours.values()):
        return parts.flood(page, source)
    for name in parts.neighbours:
        if name != source:
            send_page(parts, name, page)
    return None


def send_page(parts: AgentContext, neighbour: str, page: TopicCores) -> None:
    """Send a page to one neighbour."""
    imports = parts.neighbours[neighbour].policy.imports
    topics = tuple(each for each in page.topics if may_pass(imports, each.filter))
    if topics:
        parts.send(neighbour, TopicCores(page.core, page.incarnation, page.distance, topics))
