"""Rules of a bridge: they make records of a message, or give the reason for none.

A rule is a filter, templates, and at most one condition and one function. A message that matches several rules goes to
each distinct target once. One that matches no rule is finished, and counted. Pure logic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gateways.bridges.message import BridgeMessage, SinkRecord
from gateways.bridges.predicates import Predicate, PredicateUndecided
from gateways.bridges.templates import MissingValue, Template
from mqtt.topics import matches

__all__ = ["BridgeRule", "RuleError", "RuleResult", "Rules"]

TOPICS_MAX = 4096  # cached topics; a full cache is cleared

Transform = Callable[[str, bytes], bytes | None]


@dataclass(frozen=True, slots=True)
class BridgeRule:
    """One rule.

    Attributes:
      topic_filter: Filter of an MQTT source; topic or stream name of another source.
      target: Target of the records.
      key: Key of the record; None: no key, and the ordering key is the message's topic.
      headers: Name and value.
      where: None: all messages.
      transform: Topic and payload in, payload or None out.
      whole: Makes the payload from the whole message.
      qos, retain: Of the published record; None: as in the message.
    """

    topic_filter: str
    target: Template
    key: Template | None = None
    headers: tuple[tuple[str, Template], ...] = ()
    where: Predicate | None = None
    transform: Transform | None = None
    qos: int | None = None
    retain: bool | None = None
    whole: Callable[[BridgeMessage], bytes] | None = None

    @property
    def names_publisher(self) -> bool:
        """Return whether a target, key or header names the publisher."""
        templates = (self.target, self.key, *(template for _, template in self.headers))
        return any(each is not None and each.names_publisher for each in templates)


@dataclass(frozen=True, slots=True)
class RuleError:
    """A matching rule failed to make a record."""

    reason: str
    text: str


@dataclass(slots=True)
class RuleResult:
    """Outcome for one message.

    Attributes:
      records: For the sink.
      rejected: Reason for the dead letter; None: not rejected.
      dropped_by: Rules that dropped the message, as text; for `bridge try`.
      dropped: Counter label if there is no record, else "".
    """

    records: list[SinkRecord] = field(default_factory=list)
    rejected: RuleError | None = None
    dropped_by: list[str] = field(default_factory=list)
    dropped: str = ""


class Rules:
    """The rules of one direction of a bridge, in order.

    Args:
      rules: In order of the configuration.
      by_filter: The source has MQTT topics; False: names must be equal.
    """

    def __init__(self, rules: Sequence[BridgeRule], *, by_filter: bool = True) -> None:
        self._rules = tuple(rules)
        self._by_filter = by_filter
        self._cache: dict[str, tuple[BridgeRule, ...]] = {}

    def apply_rules(self, message: BridgeMessage) -> RuleResult:
        """Return the outcome for a message; raises no exception."""
        verdict = RuleResult()
        rules = self._matching(message.topic)
        targets: set[str] = set()
        for rule in rules:
            try:
                record = _record(rule, message)
            except PredicateUndecided as error:
                verdict.rejected = RuleError(error.reason, str(error))
            except MissingValue as error:
                verdict.rejected = RuleError("template", str(error))
            except Exception as error:  # of a user's function
                verdict.rejected = RuleError("transform", f"{type(error).__name__}: {error}")
            else:
                if isinstance(record, str):
                    verdict.dropped_by.append(f"{rule.topic_filter}: {record}")
                elif record.target not in targets:
                    targets.add(record.target)
                    verdict.records.append(record)
        if verdict.rejected is not None:
            verdict.records.clear()  # the whole message goes to the dead letter, for a decision by an operator
        elif not verdict.records:
            verdict.dropped = "filtered" if rules else "unmatched"
        return verdict

    def _matching(self, topic: str) -> tuple[BridgeRule, ...]:
        found = self._cache.get(topic)
        if found is None:
            if len(self._cache) >= TOPICS_MAX:
                self._cache.clear()
            found = tuple(rule for rule in self._rules if self._matches(rule.topic_filter, topic))
            self._cache[topic] = found
        return found

    def _matches(self, topic_filter: str, topic: str) -> bool:
        return matches(topic_filter, topic) if self._by_filter else topic_filter == topic


def _record(rule: BridgeRule, message: BridgeMessage) -> SinkRecord | str:
    """Return the record, or why the rule drops the message."""
    if rule.where is not None and not rule.where.holds(message):
        return "where is false"
    payload = message.payload
    if rule.transform is not None:
        changed = rule.transform(message.topic, message.payload)
        if changed is None:
            return "the function returned None"
        if not isinstance(changed, bytes):
            raise TypeError(f"the function returned {type(changed).__name__}, not bytes")
        payload = changed
    if rule.whole is not None:
        payload = rule.whole(message)
    key = message.key if rule.key is None else rule.key.fill(message).encode()
    return SinkRecord(
        rule.target.fill(message),
        payload,
        message.topic if key is None else key.decode(errors="replace"),
        message,
        key,
        message.qos if rule.qos is None else min(rule.qos, message.qos),
        message.retain if rule.retain is None else rule.retain,
        {name: template.fill(message) for name, template in rule.headers} if rule.headers else {},
    )
