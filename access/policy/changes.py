"""All records of the policy, and the changes of one command.

The policy changes only after the whole command is validated; then all its changes are applied at once.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from access.policy import bounds
from access.policy import commands as c
from access.policy.records import Ban, Revoked, RoleRecord, Token, User, UserEntitlements, UserGroup
from access.policy.tables import (
    R,
    Table,
    bans_table,
    groups_table,
    revoked_table,
    roles_table,
    tokens_table,
    users_table,
)

__all__ = ["PolicyChanges", "Tables"]


class PolicyChanges:
    """Records that one command changes; None instead of a record removes it."""

    def __init__(self, epoch: int, tables: "Tables") -> None:
        self.epoch = epoch  # of the policy after the command
        self.tables = tables
        self.users: dict[str, User | None] = {}
        self.groups: dict[str, UserGroup | None] = {}
        self.roles: dict[str, RoleRecord | None] = {}
        self.bans: dict[str, Ban | None] = {}
        self.revoked: dict[str, Revoked | None] = {}
        self.tokens: dict[str, Token | None] = {}
        self.takes_users: list[str] = []
        self.takes_groups: list[str] = []
        self.takes_roles: list[str] = []
        self.takes_bans: list[str] = []
        self.takes_revoked: list[str] = []
        self.changed_users: dict[str, UserEntitlements] = {}

    @property
    def changed(self) -> bool:
        """Whether the command changes the policy."""
        return bool(self.users or self.groups or self.roles or self.bans or self.revoked or self.tokens)

    def lacking(self, roles: Iterable[str], groups: Iterable[str] = ()) -> str:
        """Return which referenced role or group is missing, "" if none is."""
        for role in roles:
            if role not in self.tables.roles:
                return f"no role {role!r}: `stratamq role put` makes it"
        for group in groups:
            if group not in self.tables.groups:
                return f"no group {group!r}: `stratamq group put` makes it"
        return ""


class Tables:
    """All records, with the number of references to each role and group."""

    def __init__(self) -> None:
        self.users: Table[User] = users_table()
        self.groups: Table[UserGroup] = groups_table()
        self.roles: Table[RoleRecord] = roles_table()
        self.bans: Table[Ban] = bans_table(with_ends=True)
        self.revoked: Table[Revoked] = revoked_table(with_ends=True)
        self.tokens: Table[Token] = tokens_table()  # at the routers only: nodes do not authenticate operators by token
        self.role_uses: Counter[str] = Counter()
        self.group_uses: Counter[str] = Counter()

    def has_ended(self, by_utc: float) -> bool:
        """Return whether a ban, a revocation or a token expired by a time."""
        return any(table.ended(by_utc, 1) for table in (self.bans, self.revoked, self.tokens))

    @property
    def view_octets(self) -> int:
        """Return the bytes of what every node holds."""
        return self.groups.octets + self.roles.octets + self.bans.octets + self.revoked.octets

    def put(self, changes: PolicyChanges) -> None:
        """Apply the changes of a command."""
        for name, user in changes.users.items():
            self._count(self.users.get(name), -1)
            self._count(user, 1)
        for name, group in changes.groups.items():
            self._count(self.groups.get(name), -1)
            self._count(group, 1)
        _put(self.users, changes.users)
        _put(self.groups, changes.groups)
        _put(self.roles, changes.roles)
        _put(self.bans, changes.bans)
        _put(self.revoked, changes.revoked)
        _put(self.tokens, changes.tokens)

    def too_large(self, changes: PolicyChanges | None = None) -> str:
        """Return why changes exceed the policy's bounds, "" if they fit; a command that adds no byte always fits."""
        users = view = 0
        if changes is not None:
            users = _growth(self.users, changes.users)
            view = _growth(self.groups, changes.groups) + _growth(self.roles, changes.roles)
            view += _growth(self.bans, changes.bans) + _growth(self.revoked, changes.revoked)
        for what, growth, octets, most in (
            ("users", users, self.users.octets, bounds.USERS_BYTES_MAX),
            ("groups, roles, bans and revocations", view, self.view_octets, bounds.VIEW_BYTES_MAX),
        ):
            if octets + growth > most and (growth > 0 or changes is None):
                return f"the {what} would have {octets + growth} bytes, at most {most}: delete some first"
        return ""

    def view_commands(self) -> Iterator[c.SimpleCommand]:
        """Yield a command for each record except users, to validate the ranges of a snapshot."""
        yield from (c.PutGroup(group.name, group.roles, group.limits) for group in self.groups.records())
        yield from (c.PutRole(role.name, role.rules, role.priority, role.limits) for role in self.roles.records())
        yield from (c.AddBan(ban) for ban in self.bans.records())
        yield from (c.Revoke(revoked) for revoked in self.revoked.records())
        yield from (c.AddToken(token) for token in self.tokens.records())

    def _count(self, record: User | UserGroup | None, by: int) -> None:
        if record is None:
            return
        self.role_uses.update(dict.fromkeys(record.roles, by))
        if isinstance(record, User):
            self.group_uses.update(dict.fromkeys(record.groups, by))

    def count_uses(self) -> None:
        """Recount the references to roles and groups, after all records were replaced.

        Raises:
            ValueError: A record refers to a missing role or group.
        """
        self.role_uses.clear()
        self.group_uses.clear()
        for user in self.users.records():
            self.role_uses.update(user.roles)
            self.group_uses.update(user.groups)
        for group in self.groups.records():
            self.role_uses.update(group.roles)
        if any(role not in self.roles for role in self.role_uses):
            raise ValueError("a role is missing")
        if any(group not in self.groups for group in self.group_uses):
            raise ValueError("a group is missing")


def _put(table: Table[R], changed: Mapping[str, R | None]) -> None:
    for key, record in changed.items():
        if record is None:
            table.remove(key)
        else:
            table.put(record)


def _growth(table: Table[R], changed: Mapping[str, R | None]) -> int:
    return sum(
        (0 if record is None else len(msgspec.msgpack.encode(record)) + len(key.encode())) - table.octets_of(key)
        for key, record in changed.items()
    )
