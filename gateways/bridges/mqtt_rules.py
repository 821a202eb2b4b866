"""Rules of a bridge between brokers: what a topic is called on the other side, and which message has come round.

Each message takes the first line that matches it. At MQTT 5 the user property ``bridge-path`` names the bridges that a
message has crossed: one that crossed this bridge, or eight, goes no further.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from gateways.bridges.message import BridgeMessage, SinkRecord, user_properties
from gateways.bridges.rules import RuleResult
from gateways.bridges.topic_lines import TopicLine

__all__ = ["MqttRules"]

PATH_NAMES_MAX = 8
TOPICS_MAX = 4096  # whose line is remembered; then all are forgotten at once


class MqttRules:
    """Rules of one direction.

    Args:
        lines: In order.
        direction: "out" of the cluster, or "in".
        bridge: Name in ``bridge-path``.
        retained: False: nothing is retained on the other side.
    """

    def __init__(
        self, lines: Sequence[TopicLine], direction: Literal["in", "out"], bridge: str, *, retained: bool = True
    ) -> None:
        self._lines, self._bridge, self._retained = tuple(lines), bridge, retained
        self._rename: Callable[[TopicLine, str], str | None] = (
            TopicLine.outward if direction == "out" else TopicLine.inward
        )
        self._of_topic: dict[str, tuple[str, int] | None] = {}

    def judge(self, message: BridgeMessage) -> RuleResult:
        """Return what becomes of a message."""
        if message.properties:
            path = [
                name
                for key, value in user_properties(message.properties)
                if key == "bridge-path"
                for name in value.split(",")
            ]
            if self._bridge in path or len(path) >= PATH_NAMES_MAX:
                reason = "loop" if self._bridge in path else "path_too_long"
                return RuleResult(dropped=reason, fell=[f"bridge-path is {','.join(path)[:200]}"])
        found = self._line(message.topic)
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

    def _line(self, topic: str) -> tuple[str, int] | None:
        if topic not in self._of_topic:
            if len(self._of_topic) >= TOPICS_MAX:
                self._of_topic.clear()
            renamed = ((self._rename(line, topic), line.qos) for line in self._lines)
            self._of_topic[topic] = next(((name, qos) for name, qos in renamed if name is not None), None)
        return self._of_topic[topic]
