"""Mosquitto's acl_file: parses its lines into tiers with the decisions of Mosquitto 2.0.

The first tier is the section of the user, or for an anonymous client the lines before the first ``user``; the second is
the patterns of all clients. A deny of a section wins in it; a pattern never undoes an allow of a section. The second
tier does not apply to a client whose user name or client ID has a wildcard. Mosquitto grants each SUBSCRIBE and filters
deliveries, so a listener with this file delivers as with ``on_overlap = "filter"``.

Stricter than Mosquitto, which skips, guesses or merges: a repeated section, tabs, a placeholder with other text,
``$share`` in a rule, and a file without rules are refused. A ``pattern deny`` applies to everything it could match for
a client without a user name or with a "/" in a name; Mosquitto skips the pattern, or reads more levels. Source:
mosquitto.conf(5) of 2.0, and tests of the broker (tests/access/rules/test_mosquitto.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from access.files import AccessFileError, read_access_file, text_lines
from access.rules.rules import ALL_ACTIONS, PUBLISHING, SUBSCRIBING, AccessRule, Tier, check_cost, make_rule

__all__ = ["AclFile", "parse_acl_file", "read_acl_file"]

FILE_BYTES_MAX = 16 * 1024 * 1024
RULES_MAX = 100_000
USER_BYTES_MAX = 65_535  # of a user name in MQTT
ACCESS = {
    "read": (True, SUBSCRIBING),
    "write": (True, PUBLISHING),
    "readwrite": (True, ALL_ACTIONS),
    "deny": (False, ALL_ACTIONS),
}


@dataclass(frozen=True, slots=True)
class AclFile:
    """The rules of one file.

    Attributes:
        anonymous: For clients without a user name.
        users: By user name.
        patterns: For all clients.
    """

    anonymous: Tier
    users: Mapping[str, Tier]
    patterns: Tier

    def tiers(self, user: str, client_id: str) -> tuple[Tier, ...]:
        """Return the tiers of a client.

        Args:
            user: Its user name, empty for an anonymous client.
            client_id: Its client ID.
        """
        section = self.users.get(user, ()) if user else self.anonymous
        return (section, self.patterns) if self.has_patterns_for(user, client_id) else (section,)

    def has_patterns_for(self, user: str, client_id: str) -> bool:
        """Return whether the patterns apply to a client: not if one of its names contains a wildcard."""
        return not any(sign in name for sign in "+#" for name in (user, client_id))


def read_acl_file(path: Path) -> AclFile:
    """Return the rules of a file.

    Raises:
        AccessFileError: It is invalid; none of its rules applies.
    """
    return parse_acl_file(path, read_access_file(path, FILE_BYTES_MAX))


def parse_acl_file(path: Path, content: bytes) -> AclFile:
    """Return the rules of a file's content; ``path`` is for errors.

    Raises:
        AccessFileError: A line is invalid, or there is no rule.
    """
    reader = _Reader(path)
    for number, line in text_lines(path, content):
        if line.startswith("#"):
            continue
        text = line.strip(" \t")
        if text:
            try:
                reader.line(number, text)
            except ValueError as error:
                raise AccessFileError(path, number, str(error)) from None
    return reader.finish()


class _Reader:
    """Sections and patterns during parsing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._anonymous: list[AccessRule] = []
        self._users: dict[str, list[AccessRule]] = {}
        self._began: dict[str, int] = {}  # user -> line number of its section
        self._patterns: list[AccessRule] = []
        self._section = self._anonymous
        self._rules = 0

    def line(self, number: int, text: str) -> None:
        """Parse one line that is neither empty nor a comment."""
        if "\t" in text:
            raise ValueError("has a tab; write one space instead")
        word, _, rest = text.partition(" ")
        rest = rest.strip(" ")
        if word == "user":
            self._user(number, rest)
        elif word in ("topic", "pattern"):
            self._rules += 1
            if self._rules > RULES_MAX:
                raise ValueError(f"is rule {self._rules}; a file has at most {RULES_MAX}")
            rule = _rule(rest, word == "pattern")
            (self._patterns if word == "pattern" else self._section).append(rule)
        else:
            raise ValueError("begins with none of user, topic, pattern and #")

    def finish(self) -> AclFile:
        """Return the rules of all lines."""
        if not self._rules:
            raise AccessFileError(self._path, 0, "has no rule; write one, or take the file out of the settings")
        users = {user: tuple(rules) for user, rules in self._users.items()}
        file = AclFile(tuple(self._anonymous), MappingProxyType(users), tuple(self._patterns))
        for line, tier in (
            (0, file.anonymous),
            (0, file.patterns),
            *((self._began[user], users[user]) for user in users),
        ):
            try:
                check_cost(tier)
            except ValueError as error:
                raise AccessFileError(self._path, line, str(error)) from None
        return file

    def _user(self, number: int, user: str) -> None:
        if not user:
            raise ValueError("has no user name behind user")
        if len(user.encode()) > USER_BYTES_MAX:
            raise ValueError(f"has a user name longer than {USER_BYTES_MAX} bytes")
        if user in self._users:
            raise ValueError(f"begins a section again; the user has one from line {self._began[user]}")
        self._began[user] = number
        self._section = self._users[user] = []


def _rule(rest: str, pattern: bool) -> AccessRule:
    if not rest:
        raise ValueError("has no topic")
    word, space, topic = rest.partition(" ")
    topic = topic.strip(" ")
    if not space:
        word, topic = "readwrite", rest
    if word not in ACCESS:
        raise ValueError("has a first word that is none of read, write, readwrite and deny before its topic")
    allow, actions = ACCESS[word]
    return make_rule(allow, actions, topic, placeholders=pattern)
