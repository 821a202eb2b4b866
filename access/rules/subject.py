"""The client to which a rule is applied, and the placeholders of rules for its names.

A placeholder is one whole level of a parsed rule and matches one literal level. A name that could be read as several
levels, or as a wildcard, has no value: allow rules then match nothing, and deny rules match every reading of the name.
Source: CVE-2017-7650 of Mosquitto, CVE-2026-44838 of RabbitMQ.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

__all__ = ["NOTHING", "Placeholder", "Subject", "parse_levels"]

NOTHING: Mapping[str, str] = MappingProxyType({})
WORDS = {
    "%c": "client_id",
    "%u": "user",
    "${clientid}": "client_id",
    "${username}": "user",
    "${cert_common_name}": "common_name",
}
ATTRIBUTE = re.compile(r"\$\{client_attrs\.([A-Za-z0-9_-]{1,64})\}", re.ASCII)
SIGNS = re.compile("[+#/\0]")


@dataclass(frozen=True, slots=True)
class Subject:
    """One client as seen by rules.

    Attributes:
        client_id: The client ID of its session.
        user: Verified name; empty for an anonymous client.
        common_name: Of its certificate.
        attributes: From its token or an HTTP response.
        listener: Name of the listener.
        address: Of the client, without port.
    """

    client_id: str
    user: str
    common_name: str = ""
    attributes: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    listener: str = ""
    address: str = ""


@dataclass(frozen=True, slots=True)
class Placeholder:
    """One level of a rule that is a name of the client.

    Attributes:
        name: ``client_id``, ``user``, ``common_name`` or ``attribute``.
        key: Of an attribute.
    """

    name: str
    key: str = ""

    def text(self, who: Subject) -> str:
        """Return the name unchanged, empty if the client has none; it may not be a literal level."""
        if self.name == "client_id":
            return who.client_id
        if self.name == "user":
            return who.user
        if self.name == "common_name":
            return who.common_name
        text: object = who.attributes.get(self.key)
        return text if isinstance(text, str) else ""

    def value(self, who: Subject, first: bool = False) -> str | None:
        """Return the literal level, or None if the name is not a single literal level.

        Args:
            who: The client.
            first: The placeholder is the first level of its rule, which then must not begin with $.
        """
        text = self.text(who)
        if not text or SIGNS.search(text) or (first and text[0] == "$"):
            return None
        return text

    def is_level(self, level: str, who: Subject) -> bool:
        """Return whether a level of a topic name is this placeholder's value.

        A topic level has no wildcards and no "/", so only NUL needs a check.
        """
        return self.text(who) == level and level != "" and "\0" not in level


def parse_levels(text: str) -> tuple[str | Placeholder, ...]:
    """Return the levels of a rule's filter with its placeholders; filter syntax is not validated.

    Raises:
        ValueError: A placeholder is unknown, or only a part of its level; the text does not quote it.
    """
    levels: list[str | Placeholder] = []
    for position, level in enumerate(text.split("/"), 1):
        if level in WORDS:
            levels.append(Placeholder(WORDS[level]))
        elif attribute := ATTRIBUTE.fullmatch(level):
            levels.append(Placeholder("attribute", attribute[1]))
        elif "${" in level:
            raise ValueError(
                f"level {position} has ${{ but is not ${{clientid}}, ${{username}}, ${{cert_common_name}} "
                "or ${client_attrs.name} as a whole"
            )
        elif "%c" in level or "%u" in level:
            raise ValueError(f"level {position} has %c or %u beside other text; a placeholder is a whole level")
        else:
            levels.append(level)
    return tuple(levels)
