"""Marks on messages that the federation publishes at brokers, to detect bridges outside it.

A message that returns with a mark of this federation and its original topic passed a bridge between two federated
brokers: it is a repeat. Under another topic it is a client's new message. Pure functions.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from gateways.federation.messages import TopicMessage
from mqtt.properties import Properties, PropertyId

__all__ = ["LoopMark", "build_marks", "parse_mark", "remove_marks"]

ID_PROPERTY = "federation-id"
PATH_PROPERTY = "federation-path"
REPEAT_PROPERTY = "federation-possible-duplicate"
NUMBER_DIGITS = 20


class LoopMark(NamedTuple):
    """Id of a message, and its path of agents."""

    agent: str
    incarnation: int
    number: int
    path: str


def build_marks(federation: str, message: TopicMessage, agent: str, is_repeat: bool) -> list[tuple[str, str]]:
    """Return the user properties of a message that an agent publishes at its broker."""
    name = f"{federation}/{message.agent}/{message.incarnation}/{message.number}/{_topic_mark(message.topic)}"
    found = [(ID_PROPERTY, name), (PATH_PROPERTY, ">".join((*message.path, agent)))]
    if is_repeat:
        found.append((REPEAT_PROPERTY, "1"))
    return found


def parse_mark(federation: str, topic: str, properties: Properties) -> LoopMark | None:
    """Return the mark of this federation on a captured message, None if it has none."""
    pairs = properties.get(PropertyId.USER_PROPERTY)
    if not isinstance(pairs, list):
        return None
    named = dict(reversed(pairs))
    words = named.get(ID_PROPERTY, "").rsplit("/", 3)
    if len(words) != 4 or words[3] != _topic_mark(topic):
        return None
    prefix = f"{federation}/"
    numbers = words[1:3]
    if not words[0].startswith(prefix) or not all(
        each.isascii() and each.isdigit() and len(each) <= NUMBER_DIGITS for each in numbers
    ):
        return None
    incarnation, number = map(int, numbers)
    if max(incarnation, number) >= 1 << 64:
        return None
    return LoopMark(words[0].removeprefix(prefix), incarnation, number, named.get(PATH_PROPERTY, ""))


def remove_marks(properties: Properties) -> Properties:
    """Return a message's properties without marks of any federation."""
    pairs = properties.get(PropertyId.USER_PROPERTY)
    if not isinstance(pairs, list) or not any(name.startswith("federation-") for name, _ in pairs):
        return properties
    rest = [each for each in pairs if each[0] not in (ID_PROPERTY, PATH_PROPERTY, REPEAT_PROPERTY)]
    found = {**properties, PropertyId.USER_PROPERTY: rest}
    if not rest:
        del found[PropertyId.USER_PROPERTY]
    return found


def _topic_mark(topic: str) -> str:
    return blake2b(topic.encode(), digest_size=4).hexdigest()
