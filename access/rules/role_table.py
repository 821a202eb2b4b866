"""Roles, users and groups in TOML, as tiers.

``[roles.x]`` has filters to ``publish``, ``subscribe`` and ``deny``, names of groups to ``share``, and conditions;
``[groups.y]`` has roles; ``[users.z]`` has roles and groups. Roles of equal priority share a tier, so a deny of one
role wins over an allow of another; a higher priority decides first. A file with an unknown key, an unknown role or no
role gives no rule at all. Named users of the cluster are in its policy, not here.
"""

import difflib
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from access.files import AccessFileError, read_access_file
from access.rules.rules import ALL_ACTIONS, PUBLISHING, SUBSCRIBING, AccessRule, Action, Tier, check_cost, make_rule
from conf.limit_names import LIMIT_BELOW, LIMIT_NAMES
from conf.toml_lines import TomlLines

__all__ = [
    "GroupEntry",
    "RoleEntry",
    "RoleTable",
    "UserEntry",
    "make_role_table",
    "parse_role_table",
    "read_role_table",
    "rows_of",
]

FILE_BYTES_MAX = 4 * 1024 * 1024
RULES_MAX = 100_000
WORD_CHARACTERS_MAX = 64  # of a key in an error
SUGGESTION_CUTOFF = 0.55
LINE = re.compile(r" \(at line (\d+), column \d+\)$")

Text = Annotated[str, Field(min_length=1, max_length=1_024)]
Name = Annotated[str, Field(min_length=1, max_length=256)]
Names = Annotated[list[Name], Field(max_length=64)]
LimitName = Annotated[str, Field(pattern=rf"^({'|'.join(LIMIT_NAMES)})$")]
Filters = Annotated[list[Text], Field(max_length=RULES_MAX)]


class _Mistake(ValueError):
    """A mistake at one key; its line is found by ``path``."""

    def __init__(self, path: tuple[str | int, ...], text: str) -> None:
        super().__init__(f"{_key(path)}: {text}" if path else text)
        self.path = path


class _Keys(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class RoleEntry(_Keys):
    """The keys of one role.

    Attributes:
        publish: Filters of topics to publish to.
        subscribe: Filters of topics to subscribe to and receive.
        deny: Filters of topics closed to publishing and subscribing, at every QoS.
        deny_publish: Closed to publishing only.
        deny_subscribe: Closed to subscribing and receiving only.
        share: Names of groups to join; if any role has this key, no other group can be joined.
        qos_max: Highest QoS of publishes and of requested subscriptions.
        retain: False forbids retained messages.
        will: False forbids a will.
        priority: Roles of a higher one decide first.
        listener: Only for clients of this listener; empty for all.
        network: Only for addresses in this network; empty for all.
        limits: Of each client with the role, by the names of a listener's settings.
    """

    publish: Filters = []
    subscribe: Filters = []
    deny: Filters = []
    deny_publish: Filters = []
    deny_subscribe: Filters = []
    share: Filters = []
    qos_max: Annotated[int, Field(ge=0, le=2)] = 2
    retain: bool = True
    will: bool = True
    priority: Annotated[int, Field(ge=-1_000, le=1_000)] = 0
    listener: Annotated[str, Field(max_length=64)] = ""
    network: Annotated[str, Field(max_length=64)] = ""
    limits: dict[LimitName, Annotated[int, Field(ge=0, lt=LIMIT_BELOW)]] = {}


class GroupEntry(_Keys):
    """The keys of a group of users."""

    roles: Names = []


class UserEntry(_Keys):
    """The keys of one user."""

    roles: Names = []
    groups: Names = []


class _TableKeys(_Keys):
    roles: dict[Name, RoleEntry] = {}
    groups: dict[Name, GroupEntry] = {}
    users: dict[Name, UserEntry] = {}


class RoleTable:
    """Roles, and their users.

    Attributes:
        groups_named: A role names groups of subscribers, so joining any needs the right.
        limits: Of the roles with limits.
    """

    def __init__(self, tiers: Mapping[str, tuple[int, Tier]], words: _TableKeys) -> None:
        self._tiers = tiers
        self._users = words.users
        self._groups = words.groups
        self.limits = {name: role.limits for name, role in words.roles.items() if role.limits}
        self.groups_named = any(rule.actions & Action.SHARE for _, tier in tiers.values() for rule in tier)

    def roles(self, user: str, roles: Iterable[str] = (), groups: Iterable[str] = ()) -> tuple[str, ...]:
        """Return the names of all roles of a user, sorted; equal for users with equal rights.

        Args:
            user: Its name; empty for an anonymous client, which has only the given roles.
            roles: From other sources, such as a token; unknown ones are skipped, because they have no rules.
            groups: Likewise.
        """
        own = self._users.get(user) if user else None
        found = set(roles)
        if own is not None:
            found.update(own.roles)
        for group in (*groups, *(own.groups if own is not None else ())):
            known = self._groups.get(group)
            if known is not None:
                found.update(known.roles)
        return tuple(sorted(found & self._tiers.keys()))

    def tiers(self, roles: Iterable[str]) -> tuple[Tier, ...]:
        """Return the combined tiers of roles, highest priority first; an unknown role has no rules."""
        by_priority: dict[int, list[AccessRule]] = {}
        for role in roles:
            if role in self._tiers:
                priority, tier = self._tiers[role]
                by_priority.setdefault(priority, []).extend(tier)
        return tuple(tuple(by_priority[priority]) for priority in sorted(by_priority, reverse=True))


def read_role_table(path: Path) -> RoleTable:
    """Return the roles of a file.

    Raises:
        AccessFileError: It is invalid; none of its rules applies.
    """
    return parse_role_table(path, read_access_file(path, FILE_BYTES_MAX))


def parse_role_table(path: Path, content: bytes) -> RoleTable:
    """Return the roles of a file's content; ``path`` is for errors.

    Raises:
        AccessFileError: It is not TOML, has an unknown key, or no role.
    """
    try:
        text = content.decode()
        table = tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise AccessFileError(path, content.count(b"\n", 0, error.start) + 1, "is no UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        where = LINE.search(str(error))
        number = int(where[1]) if where else content.rstrip(b"\n").count(b"\n") + 1  # "at end of document"
        raise AccessFileError(path, number, f"is no TOML: {_shown(LINE.sub('', str(error)))}") from None
    except (RecursionError, ValueError):  # deep nesting, or a number with too many digits
        raise AccessFileError(
            path, 0, "is no TOML that can be read: it nests too deep, or a number is too long"
        ) from None
    try:
        return make_role_table(table)
    except _Mistake as error:
        raise AccessFileError(path, TomlLines(text).of(error.path), str(error)) from None


def make_role_table(table: Mapping[str, object]) -> RoleTable:
    """Return the roles of a decoded TOML table.

    Raises:
        ValueError: A key has a mistake; the text names it, and quotes no value.
    """
    try:
        words = _TableKeys.model_validate(dict(table))
    except ValidationError as error:
        raise _mistake(error) from None
    if not words.roles:
        raise _Mistake((), "has no role; write [roles.name], or take the file out of the settings")
    for kind, named in (("groups", words.groups), ("users", words.users)):
        for name, entry in named.items():
            _check_names((kind, name, "roles"), entry.roles, words.roles)
            if isinstance(entry, UserEntry):
                _check_names((kind, name, "groups"), entry.groups, words.groups)
    tiers = {}
    count = 0
    for name, role in words.roles.items():
        tier = _tier(name, role)
        count += len(tier)
        if count > RULES_MAX:
            raise _Mistake(("roles", name), f"lifts the file above {RULES_MAX} rules")
        tiers[name] = (role.priority, tier)
    return RoleTable(tiers, words)


Row: TypeAlias = tuple[str, list[str], bool, Action, int]  # key, filters, whether they allow, actions, highest QoS


def rows_of(role: RoleEntry) -> list[Row]:
    """Return the rules of a role's keys, without their conditions."""
    publishing = PUBLISHING
    if not role.retain:
        publishing &= ~Action.RETAIN
    if not role.will:
        publishing &= ~Action.WILL
    subscribe: list[Row] = [("subscribe", role.subscribe, True, SUBSCRIBING, 2)]
    if role.qos_max < 2:  # the requested QoS of a subscription, which bounds that of deliveries
        subscribe = [
            ("subscribe", role.subscribe, True, Action.SUBSCRIBE, role.qos_max),
            ("subscribe", role.subscribe, True, Action.RECEIVE, 2),
        ]
    return [
        *subscribe,
        ("publish", role.publish, True, publishing, role.qos_max),
        ("deny", role.deny, False, ALL_ACTIONS, 2),
        ("deny_publish", role.deny_publish, False, PUBLISHING, 2),
        ("deny_subscribe", role.deny_subscribe, False, SUBSCRIBING, 2),
        ("share", role.share, True, Action.SHARE, 2),
    ]


def _tier(name: str, role: RoleEntry) -> Tier:
    rules = []
    for word, texts, allow, actions, qos_max in rows_of(role):
        for number, text in enumerate(texts):
            try:
                if word == "share" and ("/" in text or "#" in text):
                    raise ValueError("no name of a group; write one level, or + for every group")
                rules.append(make_rule(allow, actions, text, qos_max, role.listener, role.network))
            except ValueError as error:
                raise _Mistake(("roles", name, word, number), str(error)) from None
    try:
        check_cost(tuple(rules))
    except ValueError as error:
        raise _Mistake(("roles", name), str(error)) from None
    return tuple(rules)


def _check_names(key: tuple[str, ...], names: list[str], known: Collection[str]) -> None:
    for number, name in enumerate(names):
        if name in names[:number]:
            raise _Mistake((*key, number), "the name stands there twice")
        if name not in known:
            raise _Mistake((*key, number), f"no such name{_suggestion(name, known)}")


def _mistake(error: ValidationError) -> _Mistake:
    """Return the first mistake as one line, with its key."""
    detail: Any = error.errors(include_url=False, include_input=False, include_context=False)[0]
    loc = tuple(detail["loc"])
    if detail["type"] != "extra_forbidden":
        return _Mistake(loc, detail["msg"])
    models: dict[str, type[BaseModel]] = {"roles": RoleEntry, "groups": GroupEntry, "users": UserEntry}
    model = models[str(loc[0])] if len(loc) > 2 else _TableKeys
    return _Mistake(loc, f"unknown word{_suggestion(str(loc[-1]), model.model_fields)}")


def _key(path: tuple[str | int, ...]) -> str:
    """Return a key in TOML notation, an entry of a list as ``publish[1]``."""
    names = (f"[{part}]" if isinstance(part, int) else f".{_shown(part)}" for part in path)
    return "".join(names).removeprefix(".")


def _suggestion(word: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(word[:WORD_CHARACTERS_MAX], known, 1, SUGGESTION_CUTOFF)
    return f"; did you mean {_shown(close[0])}?" if close else ""


def _shown(text: str) -> str:
    """Return a text for one line of an error: short, and without control characters."""
    cut = text if len(text) <= WORD_CHARACTERS_MAX else text[:WORD_CHARACTERS_MAX] + "..."
    return cut if cut.isprintable() else ascii(cut)
