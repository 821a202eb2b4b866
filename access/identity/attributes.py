"""Client attributes of a token or an HTTP response: a small map of text to text, for placeholders of rules."""

import re
from collections.abc import Mapping
from types import MappingProxyType

from access.identity.principal import name_fault

__all__ = ["read_attributes"]

ATTRIBUTES_MAX = 32
VALUE_CHARACTERS_MAX = 256
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


def read_attributes(value: object) -> Mapping[str, str]:
    """Return the attributes in decoded JSON; an empty value is allowed, and matches no rule.

    Raises:
        ValueError: It is not a map of text to text, has too many entries, or an invalid name or value.
    """
    if not isinstance(value, dict) or len(value) > ATTRIBUTES_MAX:
        raise ValueError(f"client_attrs is no map of at most {ATTRIBUTES_MAX}")
    for name, text in value.items():
        if not isinstance(name, str) or NAME.fullmatch(name) is None:
            raise ValueError("client_attrs has a name beyond letters, digits, _ and -")
        if not isinstance(text, str) or len(text) > VALUE_CHARACTERS_MAX or (text and name_fault(text)):
            raise ValueError(f"client_attrs.{name} is no plain text of at most {VALUE_CHARACTERS_MAX} characters")
    return MappingProxyType(dict(value))
