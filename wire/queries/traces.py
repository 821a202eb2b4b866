"""Patterns of traces: the meaning of each kind, and the match of an event.

| kind | pattern | an event is about it by |
|---|---|---|
| client | client ID, with ``*`` and ``?`` | its client |
| topic | topic filter | its topic |
| address | network, as 192.0.2.0/24 | the address of its client |
| origin | origin of a message, as queues, journals and traces print it | its origin |

Decision: docs/adr/0170-traces.md.
"""

from collections.abc import Callable
from ipaddress import ip_address, ip_network

from mqtt.errors import MqttError
from mqtt.topics import has_wildcard, matches, validate_topic_filter
from wire.queries.wildcards import is_literal, matcher

__all__ = [
    "ADDRESS",
    "BY_NODE",
    "CLIENT",
    "COPY_OF",
    "KINDS",
    "NO_ORIGIN",
    "ORIGIN",
    "TOPIC",
    "Origin",
    "TraceRefused",
    "judge_of",
]

CLIENT, TOPIC, ADDRESS, ORIGIN = KINDS = ("client", "topic", "address", "origin")
BY_NODE = "by this node"  # detail of a message that an edge did not receive from a client
COPY_OF = "copy of "  # prefix of the detail of a shared subscription's copy; the original's origin follows
PATTERN_MAX = 1_024  # characters, of one with wildcards
Origin = tuple[int, int, int]  # OriginKind, and its two numbers
NO_ORIGIN: Origin = (0, 0, 0)


class TraceRefused(ValueError):
    """A trace was not started or stopped; the text is one line: fault, place, remedy."""


def judge_of(kind: str, pattern: str) -> Callable[[str], bool]:
    """Return a predicate for the texts (client ID, topic, address or origin) of a trace.

    Raises:
        TraceRefused: The kind is unknown, or the pattern is malformed.
    """
    if kind not in KINDS:
        raise TraceRefused(f"no trace of kind {_line(kind)!r}: there are {', '.join(KINDS)}")
    if not pattern:
        raise TraceRefused(f"a trace of kind {kind} wants a pattern: {_FORMS[kind]}")
    if kind == CLIENT:
        if len(pattern) > PATTERN_MAX and not is_literal(pattern):
            raise TraceRefused(f"a pattern with * or ? has at most {PATTERN_MAX} characters")
        return matcher(pattern)
    if kind == TOPIC:
        return _by_filter(pattern)
    if kind == ADDRESS:
        return _by_network(pattern)
    name, _, numbers = pattern.partition("/")
    if not name or pattern.count("/") != 2 or not all(part for part in numbers.split("/")):
        raise TraceRefused(f"{_line(pattern)!r} is no origin: {_FORMS[ORIGIN]}")
    return pattern.__eq__


_FORMS = {
    CLIENT: "a client ID, with * and ?",
    TOPIC: "a topic filter",
    ADDRESS: "a network, as 192.0.2.0/24",
    ORIGIN: "EDGE/INCARNATION/NUMBER, as journal, queue and trace print it",
}


def _by_filter(pattern: str) -> Callable[[str], bool]:
    try:
        validate_topic_filter(pattern)
    except MqttError as error:
        raise TraceRefused(f"{_line(pattern)!r} is no topic filter: {error}") from None
    return (lambda topic: matches(pattern, topic)) if has_wildcard(pattern) else pattern.__eq__


def _by_network(pattern: str) -> Callable[[str], bool]:
    try:
        network = ip_network(pattern, strict=False)
    except ValueError:
        raise TraceRefused(f"{_line(pattern)!r} is no network: write it as 192.0.2.0/24 or 2001:db8::/32") from None

    def predicate(address: str) -> bool:
        try:
            found = ip_address(address)
        except ValueError:
            return False
        mapped = getattr(found, "ipv4_mapped", None)
        return (mapped or found) in network

    return predicate


def _line(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text[:64])
