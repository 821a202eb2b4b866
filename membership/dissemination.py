"""The queue of news about members, and the number of their transmissions.

It has one item per member: a newer one about the same member replaces it, so the queue is bounded by the number of
members. Each is sent at most lambda * log10(N + 1) times, the least sent first. The caller chooses the receivers.
Source: SWIM (2002), sections 4.1 and 5 (infection-style dissemination).
"""

from dataclasses import dataclass

__all__ = ["Dissemination"]


@dataclass(slots=True)
class _News:
    subject: str
    encoded: bytes
    order: int  # newer is higher: among equally often sent items, the newest is first
    transmits: int = 0


class Dissemination:
    """The queue of news to piggyback on packets or to gossip."""

    def __init__(self) -> None:
        self._news: dict[str, _News] = {}
        self._order = 0

    def __len__(self) -> int:
        return len(self._news)

    def __contains__(self, subject: str) -> bool:
        return subject in self._news

    def add(self, subject: str, encoded: bytes) -> None:
        """Queue news about a member; it replaces older news about the same member."""
        self._order += 1
        self._news[subject] = _News(subject, encoded, self._order)

    def discard(self, subject: str) -> None:
        """Remove the news about a member."""
        self._news.pop(subject, None)

    def take(self, budget_bytes: int, count_max: int, transmit_limit: int) -> list[bytes]:
        """Return encoded news that fits one packet, and count one transmission of each.

        Args:
            budget_bytes: Free bytes in the packet.
            count_max: Free messages in the packet.
            transmit_limit: Transmissions of one item; the last one removes it.
        """
        if not self._news:
            return []
        queue = sorted(self._news.values(), key=lambda news: (news.transmits, -news.order))
        chosen: list[bytes] = []
        for news in queue:
            if len(chosen) >= count_max:
                break
            if len(news.encoded) > budget_bytes:
                continue
            budget_bytes -= len(news.encoded)
            chosen.append(news.encoded)
            news.transmits += 1
            if news.transmits >= transmit_limit:
                del self._news[news.subject]
        return chosen
