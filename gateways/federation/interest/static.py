"""Interest that is configured: for any broker, and beside any other adapter."""

from __future__ import annotations

from collections.abc import Iterable

from gateways.federation.interest.interest import NO_CLIENT, Interest

__all__ = ["CONFIGURED", "StaticFilters", "want_configured"]

CONFIGURED = f"{NO_CLIENT}configured"
QOS = 2


class StaticFilters:
    """An ``Adapter`` that reads nothing."""

    filters: tuple[str, ...] = ()

    def __init__(self, interest: Interest) -> None:
        self.interest = interest

    def takes(self, topic: str) -> bool:
        """Return False: nothing is read."""
        del topic
        return False

    def received(self, wall_s: float, topic: str, payload: bytes) -> None:
        """Ignore a message."""

    def away(self, wall_s: float) -> None:
        """Ignore it."""

    def back(self, wall_s: float, is_present: bool) -> bool:
        """Return False: nothing can be missed."""
        del wall_s, is_present
        return False


def want_configured(interest: Interest, filters: Iterable[str]) -> None:
    """Want what the file says, and nothing else that a former file said."""
    interest.connected(CONFIGURED, keeps=False)
    for topic_filter in filters:
        interest.subscribed(CONFIGURED, topic_filter, QOS)
