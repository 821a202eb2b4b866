"""Pages of announcements and requests: split by size, and filtered by a neighbour's policy.

A filter is not announced to a neighbour whose topics must not be received from it, and not accepted from one to which
its topics must not be sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from gateways.federation.agent_context import AgentContext
from gateways.federation.filters import overlaps
from gateways.federation.messages import SubscriptionRequest, Topic, TopicCores

__all__ = ["cut_pages", "flood_page", "may_pass", "send_page"]

PAGE_BYTES = 256 * 1024
AnyItem = TypeVar("AnyItem", Topic, SubscriptionRequest)


def cut_pages(items: Iterable[AnyItem]) -> Iterator[tuple[AnyItem, ...]]:
    """Yield items in pages of at most about 256 KiB."""
    page: list[AnyItem] = []
    length = 0
    for item in items:
        page.append(item)
        more = sum(4 * len(each) for each in item.members) if isinstance(item, Topic) else len(item.digests)
        length += 4 * len(item.filter) + more + 32
        if length >= PAGE_BYTES:
            yield tuple(page)
            page, length = [], 0
    if page:
        yield tuple(page)


def may_pass(policy: tuple[str, ...], topic_filter: str) -> bool:
    """Return whether a policy permits some topic of a filter."""
    return "#" in policy or any(overlaps(each, topic_filter) for each in policy)


def flood_page(parts: AgentContext, page: TopicCores, source: str = "") -> None:
    """Send a page to each neighbour except the source."""
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
