"""Lines ``filter direction qos local-prefix remote-prefix`` of a bridge between brokers, in Mosquitto's format.

Validates lines and maps filters and topics between both sides.
Source: mosquitto.conf(5), option ``topic``: eight combinations of filter and prefixes, of which three are invalid.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

from mqtt.errors import MqttError
from mqtt.topics import matches, validate_topic_filter

__all__ = ["TopicLine", "find_loop", "parse_topic_line"]

Direction = Literal["out", "in", "both"]
WORDS_MAX = 5


@dataclass(frozen=True, slots=True)
class TopicLine:
    """One line; "local" is the cluster."""

    pattern: str
    direction: Direction
    qos: int
    local_prefix: str
    remote_prefix: str

    @property
    def local_filter(self) -> str:
        """Return the filter on the cluster's side."""
        return self.local_prefix + self.pattern

    @property
    def remote_filter(self) -> str:
        """Return the filter on the other side."""
        return self.remote_prefix + self.pattern

    def to_remote(self, topic: str) -> str | None:
        """Return the remote topic of a cluster topic; None: this line does not match."""
        if self.direction == "in" or not matches(self.local_filter, topic) or not topic.startswith(self.local_prefix):
            return None  # a/# matches the topic a too, which lacks the prefix a/
        return self.remote_prefix + topic[len(self.local_prefix) :]

    def to_local(self, topic: str) -> str | None:
        """Return the cluster topic of a remote topic; None: this line does not match."""
        if self.direction == "out" or not matches(self.remote_filter, topic):
            return None
        if not topic.startswith(self.remote_prefix):
            return None
        return self.local_prefix + topic[len(self.remote_prefix) :]


def parse_topic_line(text: str) -> TopicLine:
    """Return the parsed line; defaults are direction out, qos 0 and empty prefixes.

    Raises:
      ValueError: The line is invalid; the message names the fault.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from None
    if not words or len(words) > WORDS_MAX:
        raise ValueError(f"{text!r}: write filter, direction, qos, local prefix, remote prefix")
    pattern, direction, qos, local, remote = (*words, *("", "out", "0", "", "")[len(words) :])
    if direction not in ("out", "in", "both"):
        raise ValueError(f"{text!r}: the direction is out, in or both, not {direction!r}")
    if qos not in ("0", "1", "2"):
        raise ValueError(f"{text!r}: QoS is 0, 1 or 2, not {qos!r}")
    if not pattern and not (local and remote):
        raise ValueError(f"{text!r}: without a filter both prefixes are needed: they name one topic on each side")
    line = TopicLine(pattern, cast("Direction", direction), int(qos), local, remote)
    for prefix in (local, remote):
        if "+" in prefix or "#" in prefix:
            raise ValueError(f"{text!r}: a prefix must not contain wildcards")
    for topic_filter in (line.local_filter, line.remote_filter):
        try:
            validate_topic_filter(topic_filter)
        except MqttError as error:
            raise ValueError(f"{text!r}: {topic_filter!r} is not a valid filter: {error}") from None
        if topic_filter.startswith("$share/"):
            raise ValueError(f"{text!r}: shared subscriptions are not supported here")
    return line


def find_loop(lines: Sequence[TopicLine], others: Sequence[TopicLine]) -> str:
    """Return why two bridges between the same two brokers form a loop, "" if they do not.

    A connection does not receive its own messages (No Local), but those of another bridge.
    """
    for line in lines:
        for other in others:
            there_and_back = (line.direction != "in" and other.direction != "out") or (
                line.direction != "out" and other.direction != "in"
            )
            same = line.local_prefix == other.local_prefix and line.remote_prefix == other.remote_prefix
            if there_and_back and same and _overlap(line.local_filter, other.local_filter):
                return f"{line.local_filter!r} is forwarded by one bridge and returned by the other"
    return ""


def _overlap(one: str, other: str) -> bool:
    """Whether some topic matches both filters."""
    ours, theirs = one.split("/"), other.split("/")
    for position in range(max(len(ours), len(theirs))):
        if position >= len(ours) or position >= len(theirs):
            rest = ours[position:] or theirs[position:]
            return rest == ["#"]
        a, b = ours[position], theirs[position]
        if "#" in (a, b):
            return True
        if a != b and "+" not in (a, b):
            return False
    return True
