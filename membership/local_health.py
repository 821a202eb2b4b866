"""Local health: how far this member should suspect itself before it suspects others.

A score from 0 (healthy) to a ceiling; probe period and timeouts are multiplied by score + 1. Source: Lifeguard (2018),
section IV.A, Local Health Aware Probe.
"""

__all__ = ["LocalHealth"]


class LocalHealth:
    """The local health score, whose multiplier stretches our own probes."""

    def __init__(self, maximum: int, *, enabled: bool = True) -> None:
        """Start healthy.

        Args:
            maximum: Highest score, 0 or more.
            enabled: False keeps the score at 0 (plain SWIM, for measurement).
        """
        self._maximum = maximum if enabled else 0
        self.score = 0

    @property
    def local_health_multiplier(self) -> int:
        """Factor for the probe period and timeout: score + 1."""
        return self.score + 1

    def probe_succeeded(self) -> None:
        """Take one step towards healthy."""
        self._apply(-1)

    def probe_failed(self, relays_asked: int, nacks: int) -> None:
        """Lower the score for a probe without ack: each relay that sent no nack is evidence of a local problem.

        Without relays there is no evidence against it, and the failure counts once.
        """
        self._apply(relays_asked - nacks if relays_asked else 1)

    def refuted(self) -> None:
        """Lower the health: others suspected this member, so its acks are late or lost."""
        self._apply(1)

    def paused(self) -> None:
        """Lower the health: a local timer fired late, so this process was paused."""
        self._apply(1)

    def _apply(self, delta: int) -> None:
        self.score = min(self._maximum, max(0, self.score + delta))
