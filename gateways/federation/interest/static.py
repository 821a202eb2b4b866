"""Configured interest: for any broker, and in addition to any other adapter."""

from __future__ import annotations

from collections.abc import Iterable

from gateways.federation.interest.interest import NO_CLIENT, Interest

__all__ = ["CONFIGURED", "StaticFilters", "set_configured"]

CONFIGURED = f"{NO_CLIENT}configured"
QOS = 2


class StaticFilters:
    """An ``Adapter`` without input."""

    filters: tuple[str, ...] = ()

    def __init__(self, interest: Interest) -> None:
        self.interest = interest

    def accepts(self, topic: str) -> bool:
        """Return False: no message is read."""
        del topic
        return False

    def received(self, wall_s: float, topic: str, payload: bytes) -> None:
        """Ignore a message."""

    def disconnected(self, wall_s: float) -> None:
        """Ignore the disconnection."""

    def reconnected(self, wall_s: float, is_present: bool) -> bool:
        """Return False: no message can be missed."""
        del wall_s, is_present
        return False


def set_configured(interest: Interest, filters: Iterable[str]) -> None:
    """Replace the configured filters of a former start."""
    interest.connected(CONFIGURED, is_persistent=False)
    for topic_filter in filters:
        interest.subscribed(CONFIGURED, topic_filter, QOS)
