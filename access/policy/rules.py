"""The rule of each command: which records it changes, which rights it removes, or why it is refused.

A rule reads the policy and writes into ``PolicyChanges``; the machine applies those after the whole command is
validated, so a refused command has no effect. Source: docs/adr/0034.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from access.policy import bounds
from access.policy import commands as c
from access.policy.changes import PolicyChanges
from access.policy.records import RoleRecord, User, UserEntitlements, UserGroup, ban_key, revoked_key
from access.policy.step import RECORDS_MAX

__all__ = ["RULES"]


def _add_user(changes: PolicyChanges, command: c.AddUser) -> str:
    users = changes.tables.users
    if command.name in users:
        return f"user {command.name!r} is there already: `user change` or `user password` change it"
    if len(users) >= bounds.USERS_MAX:
        return f"the policy holds {bounds.USERS_MAX} users: delete one first"
    changes.users[command.name] = User(
        command.name,
        changes.epoch,
        changes.epoch,
        False,
        command.record,
        command.verifier,
        command.roles,
        command.groups,
        command.limits,
    )
    return changes.lacking(command.roles, command.groups)


def _user(changes: PolicyChanges, name: str) -> User | str:
    return changes.tables.users.get(name) or f"no user {name!r}"


def _set_user(changes: PolicyChanges, before: User, *, ends: bool = False, **fields: Any) -> User | None:
    """Set fields of a user and return it, None if nothing changed; ``ends``: its existing connections are closed."""
    if all(getattr(before, name) == value for name, value in fields.items()):
        return None
    since = changes.epoch if ends else before.since
    after = msgspec.structs.replace(before, version=changes.epoch, since=since, **fields)
    changes.users[before.name] = after
    if ends:
        changes.takes_users.append(before.name)
    return after


def _change_user(changes: PolicyChanges, command: c.ChangeUser) -> str:
    user = _user(changes, command.name)
    if isinstance(user, str):
        return user
    given = {name: getattr(command, name) for name in ("roles", "groups", "limits")}
    after = _set_user(changes, user, **{name: value for name, value in given.items() if value is not None})
    if after is not None:
        changes.changed_users[after.name] = UserEntitlements(after.made, after.roles, after.groups, after.limits)
    return changes.lacking(command.roles or (), command.groups or ())


def _set_password(changes: PolicyChanges, command: c.SetPassword) -> str:
    user = _user(changes, command.name)
    if isinstance(user, str):
        return user
    _set_user(changes, user, ends=True, record=command.record, verifier=command.verifier)
    return ""


def _set_disabled(changes: PolicyChanges, command: c.SetDisabled) -> str:
    user = _user(changes, command.name)
    if isinstance(user, str):
        return user
    _set_user(changes, user, ends=command.disabled, disabled=command.disabled)
    return ""


def _delete_user(changes: PolicyChanges, command: c.DeleteUser) -> str:
    if command.name not in changes.tables.users:
        return f"no user {command.name!r}"
    changes.users[command.name] = None
    changes.takes_users.append(command.name)
    return ""


def _put_role(changes: PolicyChanges, command: c.PutRole) -> str:
    roles = changes.tables.roles
    before, after = roles.get(command.name), RoleRecord(command.name, command.rules, command.priority, command.limits)
    if before is None and len(roles) >= bounds.ROLES_MAX:
        return f"the policy holds {bounds.ROLES_MAX} roles: delete one first"
    if before != after:
        changes.roles[command.name] = after
        changes.takes_roles += [command.name] * (before is not None)
    return ""


def _delete_role(changes: PolicyChanges, command: c.DeleteRole) -> str:
    if command.name not in changes.tables.roles:
        return f"no role {command.name!r}"
    uses = changes.tables.role_uses[command.name]
    if uses:  # a later role of that name would give its rights to these users
        return f"role {command.name!r} belongs to {uses} users and groups: take it from them first"
    changes.roles[command.name] = None
    changes.takes_roles.append(command.name)
    return ""


def _put_group(changes: PolicyChanges, command: c.PutGroup) -> str:
    groups = changes.tables.groups
    before, after = groups.get(command.name), UserGroup(command.name, command.roles, command.limits)
    if before is None and len(groups) >= bounds.GROUPS_MAX:
        return f"the policy holds {bounds.GROUPS_MAX} groups: delete one first"
    if before != after:
        changes.groups[command.name] = after
        changes.takes_groups += [command.name] * (before is not None)
    return changes.lacking(command.roles)


def _delete_group(changes: PolicyChanges, command: c.DeleteGroup) -> str:
    if command.name not in changes.tables.groups:
        return f"no group {command.name!r}"
    uses = changes.tables.group_uses[command.name]
    if uses:
        return f"group {command.name!r} has {uses} users: take them out first"
    changes.groups[command.name] = None
    changes.takes_groups.append(command.name)
    return ""


def _add_ban(changes: PolicyChanges, command: c.AddBan) -> str:
    bans = changes.tables.bans
    key = ban_key(command.ban.kind, command.ban.value)
    if key not in bans and len(bans) >= bounds.BANS_MAX:
        return f"the policy holds {bounds.BANS_MAX} bans: take one back first"
    if bans.get(key) != command.ban:
        changes.bans[key] = command.ban
        changes.takes_bans.append(key)
    return ""


def _delete_ban(changes: PolicyChanges, command: c.DeleteBan) -> str:
    key = ban_key(command.kind, command.value)
    if key not in changes.tables.bans:
        return f"{command.kind} {command.value!r} is not banned"
    changes.bans[key] = None
    return ""


def _revoke(changes: PolicyChanges, command: c.Revoke) -> str:
    revoked = changes.tables.revoked
    entry = command.revoked
    key = revoked_key(entry.kind, entry.issuer, entry.value)
    if key not in revoked and len(revoked) >= bounds.REVOKED_MAX:
        return f"the policy holds {bounds.REVOKED_MAX} revocations: those of certificates belong into a CRL"
    if revoked.get(key) != entry:
        changes.revoked[key] = entry
        changes.takes_revoked.append(key)
    return ""


def _unrevoke(changes: PolicyChanges, command: c.Unrevoke) -> str:
    key = revoked_key(command.kind, command.issuer, command.value)
    if key not in changes.tables.revoked:
        return f"{command.kind} {command.value!r} is not revoked"
    changes.revoked[key] = None
    return ""


def _add_token(changes: PolicyChanges, command: c.AddToken) -> str:
    tokens = changes.tables.tokens
    token = command.token
    if token.name in tokens:
        return f"token {token.name!r} is there already: revoke it first, or choose another name"
    if len(tokens) >= bounds.TOKENS_MAX:
        return f"the policy holds {bounds.TOKENS_MAX} tokens: revoke one first"
    changes.tokens[token.name] = token
    return ""


def _delete_token(changes: PolicyChanges, command: c.DeleteToken) -> str:
    if command.name not in changes.tables.tokens:
        return f"no token {command.name!r}: `stratamq token list` names them"
    changes.tokens[command.name] = None
    return ""


def _prune(changes: PolicyChanges, command: c.Prune) -> str:
    tables, by_utc = changes.tables, command.now_utc
    changes.bans.update(dict.fromkeys(tables.bans.ended(by_utc, RECORDS_MAX)))
    room = RECORDS_MAX - len(changes.bans)
    changes.revoked.update(dict.fromkeys(tables.revoked.ended(by_utc, room)))
    room -= len(changes.revoked)
    changes.tokens.update(dict.fromkeys(tables.tokens.ended(by_utc, room)))
    return ""


RULES: dict[type[c.PolicyCommand], Callable[[PolicyChanges, Any], str]] = {
    c.AddUser: _add_user,
    c.ChangeUser: _change_user,
    c.SetPassword: _set_password,
    c.SetDisabled: _set_disabled,
    c.DeleteUser: _delete_user,
    c.PutRole: _put_role,
    c.DeleteRole: _delete_role,
    c.PutGroup: _put_group,
    c.DeleteGroup: _delete_group,
    c.AddBan: _add_ban,
    c.DeleteBan: _delete_ban,
    c.Revoke: _revoke,
    c.Unrevoke: _unrevoke,
    c.AddToken: _add_token,
    c.DeleteToken: _delete_token,
    c.Prune: _prune,
}
