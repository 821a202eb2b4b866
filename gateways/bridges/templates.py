"""Templates of topics, keys and headers: text with ``{topic}``, ``{level.2}``, ``{property.site}`` and others.

A field that the source cannot have is a configuration error, found before the bridge starts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from gateways.bridges.message import BridgeMessage, user_properties
from mqtt.publisher_properties import CLIENT_ID, USER_NAME
from mqtt.topics import levels

__all__ = ["MissingValue", "Template"]

FIELD = re.compile(r"\{([^{}]*)\}")
PUBLISHER_FIELDS = {"client_id": CLIENT_ID, "user_name": USER_NAME}  # written only by an edge

Reader = Callable[[BridgeMessage], str]


class MissingValue(Exception):
    """This message lacks a value that a template names."""


class Template:
    """A text with fields that are filled in for each message.

    Args:
      text: With fields in braces.
      topic_filter: Filter of the messages: levels beyond it are errors. "" for sources without levels.
      fields: Further fields by name, for the source's kind.

    Attributes:
      is_fixed: The text has no fields.
      names_publisher: It has ``{client_id}`` or ``{user_name}``, which only messages of the cluster have.

    Raises:
      ValueError: The template is invalid; the message names the fault.
    """

    def __init__(self, text: str, topic_filter: str = "", fields: Mapping[str, Reader] | None = None) -> None:
        self.text = text
        self._fields = dict(fields or {})
        self._filter_levels = levels(_strip_share(topic_filter)) if topic_filter else []
        self._parts: list[str | Reader] = []
        self.names_publisher = False
        at = 0
        for match in FIELD.finditer(text):
            self._parts += [text[at : match.start()], self._reader(match[1])]
            at = match.end()
        self._parts.append(text[at:])
        if any("{" in part or "}" in part for part in self._parts if isinstance(part, str)):
            raise ValueError(f"{text!r}: unmatched brace")
        self.is_fixed = all(isinstance(part, str) for part in self._parts)

    def fill(self, message: BridgeMessage) -> str:
        """Return the text for a message.

        Raises:
            MissingValue: The message has fewer levels, or its edge does not name the publisher.
        """
        if self.is_fixed:
            return self.text
        return "".join([part if isinstance(part, str) else part(message) for part in self._parts])

    def _reader(self, name: str) -> Reader:
        kind, _, rest = name.partition(".")
        if name in self._fields:
            return self._fields[name]
        if name == "topic":
            return lambda message: message.topic
        if name == "qos":
            return lambda message: str(message.qos)
        if name in PUBLISHER_FIELDS and self._filter_levels:
            self.names_publisher = True
            return _publisher_reader(PUBLISHER_FIELDS[name])
        if kind == "property" and rest:
            return _property_reader(rest)
        if kind == "level" and rest.isdecimal() and int(rest) > 0 and self._filter_levels:
            return self._level_reader(int(rest))
        if name == "rest" and self._filter_levels:
            return self._rest_reader()
        known = ["topic", "qos", "property.NAME", *self._fields]
        known += ["level.N", "rest", *PUBLISHER_FIELDS] if self._filter_levels else []
        raise ValueError(f"{self.text!r} names {{{name}}}; there are {', '.join(known)}")

    def _level_reader(self, number: int) -> Reader:
        if number > len(self._filter_levels) and self._filter_levels[-1] != "#":
            raise ValueError(
                f"{self.text!r} names level {number}, topics of the filter have {len(self._filter_levels)}"
            )

        def read(message: BridgeMessage) -> str:
            found = levels(message.topic)
            if number > len(found):
                raise MissingValue(f"{message.topic!r} has no level {number}")
            return found[number - 1]

        return read

    def _rest_reader(self) -> Reader:
        if self._filter_levels[-1] != "#":
            raise ValueError(f"{self.text!r} names {{rest}}, the part that # matches; the filter has no #")
        fixed = len(self._filter_levels) - 1
        return lambda message: "/".join(levels(message.topic)[fixed:])


def _publisher_reader(name: str) -> Reader:
    def read(message: BridgeMessage) -> str:
        for key, value in user_properties(message.properties):
            if key == name:
                return value
        raise MissingValue("no edge names the publisher (edge.publisher_properties)")

    return read


def _property_reader(name: str) -> Reader:
    def read(message: BridgeMessage) -> str:
        return next((value for key, value in user_properties(message.properties) if key == name), "")

    return read


def _strip_share(topic_filter: str) -> str:
    """Return a filter without the name of its shared group."""
    return topic_filter.split("/", 2)[2] if topic_filter.startswith("$share/") else topic_filter
