"""Rules of a bridge between brokers: topic names on the other side, and loop detection.

The first matching line applies to a message. At MQTT 5 the user property ``bridge-path`` lists the bridges that
forwarded a message. A message that passed this bridge, or eight bridges, is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from gateways.bridges.message import BridgeMessage, SinkRecord, user_properties
from gateways.bridges.rules import RuleResult
from gateways.bridges.topic_lines import TopicLine

__all__ = ["MqttRules"]

PATH_NAMES_MAX = 8
TOPICS_MAX = 4096  # cached topics; a full cache is cleared


class MqttRules:
    """Rules of one direction.

    Args:
      lines: In order.
      direction: "out" of the cluster, or "in".
      bridge: Name in ``bridge-path``.
      retained: False: messages are published without RETAIN.
    """

    def __init__(
        self, lines: Sequence[TopicLine], direction: Literal["in", "out"], bridge: str, *, retained: bool = True
    ) -> None:
        self._lines, self._bridge, self._retained = tuple(lines), bridge, retained
        self._rename: Callable[[TopicLine, str], str | None] = (
            TopicLine.to_remote if direction == "out" else TopicLine.to_local
        )
        self._cache: dict[str, tuple[str, int] | None] = {}

    def apply_rules(self, message: BridgeMessage) -> RuleResult:
        """Return the record of a message, or why it is dropped."""
        if message.properties:
            path = [
                name
                for key, value in user_properties(message.properties)
                if key == "bridge-path"
                for name in value.split(",")
            ]
            if self._bridge in path or len(path) >= PATH_NAMES_MAX:
                reason = "loop" if self._bridge in path else "path_too_long"
                return RuleResult(dropped=reason, dropped_by=[f"bridge-path is {','.join(path)[:200]}"])
        found = self._find_line(message.topic)
        if found is None:
            return RuleResult(dropped="unmatched")
        target, qos = found
        return RuleResult(
            [
                SinkRecord(
                    target,
                    message.payload,
                    target,
                    message,
                    None,
                    min(qos, message.qos),
                    message.retain and self._retained,
                )
            ]
        )

    def _find_line(self, topic: str) -> tuple[str, int] | None:
        if topic not in self._cache:
            if len(self._cache) >= TOPICS_MAX:
                self._cache.clear()
            renamed = ((self._rename(line, topic), line.qos) for line in self._lines)
            self._cache[topic] = next(((name, qos) for name, qos in renamed if name is not None), None)
        return self._cache[topic]
