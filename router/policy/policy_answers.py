"""Answers to operators about users, roles, groups and bans: the policy of this router, without secrets.

Functions of a request's arguments and the machine; each returns plain data, as ``-o json`` prints it.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from hmac import compare_digest
from typing import Any

from access.operators import arguments as given
from access.policy.machine import PolicyMachine
from access.policy.records import Ban, RoleRecord, Token, User, UserGroup
from access.policy.step import StepOutcome
from access.rules.rules import Action

__all__ = ["READING", "affected_names"]

Answer = dict[str, Any]


def _user(user: User) -> Answer:
    return {
        "user": user.name,
        "enabled": not user.disabled,
        "password": bool(user.record),
        "scram": bool(user.verifier),
        "roles": list(user.roles),
        "groups": list(user.groups),
        "limits": dict(user.limits),
        "made": user.made,
        "changed": user.version,
    }


def _role(role: RoleRecord) -> Answer:
    rules = [
        {
            "allow": rule.allow,
            "actions": [action.name.lower() for action in Action if rule.actions & action and action.name],
            "filter": rule.filter,
            "qos_max": rule.qos_max,
            "listener": rule.listener,
            "network": rule.network,
        }
        for rule in role.rules
    ]
    return {"role": role.name, "priority": role.priority, "limits": dict(role.limits), "rules": rules}


def _group(group: UserGroup) -> Answer:
    return {"group": group.name, "roles": list(group.roles), "limits": dict(group.limits)}


def _ban(ban: Ban) -> Answer:
    return {"kind": ban.kind, "value": ban.value, "until": _timestamp(ban.until_utc), "reason": ban.reason}


def _token(token: Token) -> Answer:
    return {
        "token": token.name,
        "role": token.role,
        "made_at": _timestamp(token.made_utc),
        "until": _timestamp(token.until_utc),
    }


def _timestamp(utc: float) -> str | None:
    """Return a time in ISO 8601; None for 0."""
    if not utc:
        return None
    try:
        time = datetime.fromtimestamp(utc, UTC)
    except (ValueError, OverflowError, OSError):  # outside the calendar
        return f"{utc:g}"
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _users(wanted: given.List, machine: PolicyMachine) -> Answer:
    names = machine.tables.users.names(wanted.after, wanted.count)
    users = [user for name in names if (user := machine.tables.users.get(name)) is not None]
    return _page("users", [_user(user) for user in users], names, wanted, machine)


def _roles(wanted: given.List, machine: PolicyMachine) -> Answer:
    names = machine.tables.roles.names(wanted.after, wanted.count)
    roles = [role for name in names if (role := machine.tables.roles.get(name)) is not None]
    rows = [{"role": role.name, "priority": role.priority, "rules": len(role.rules)} for role in roles]
    return _page("roles", rows, names, wanted, machine)


def _groups(wanted: given.List, machine: PolicyMachine) -> Answer:
    names = machine.tables.groups.names(wanted.after, wanted.count)
    groups = [group for name in names if (group := machine.tables.groups.get(name)) is not None]
    return _page("groups", [_group(group) for group in groups], names, wanted, machine)


def _bans(wanted: given.List, machine: PolicyMachine) -> Answer:
    keys = machine.tables.bans.names(wanted.after, wanted.count)
    bans = [ban for key in keys if (ban := machine.tables.bans.get(key)) is not None]
    return _page("bans", [_ban(ban) for ban in bans], keys, wanted, machine)


def _tokens(wanted: given.List, machine: PolicyMachine) -> Answer:
    names = machine.tables.tokens.names(wanted.after, wanted.count)
    tokens = [token for name in names if (token := machine.tables.tokens.get(name)) is not None]
    return _page("tokens", [_token(token) for token in tokens], names, wanted, machine)


def _check_token(wanted: given.TokenCheck, machine: PolicyMachine) -> Answer:
    """Return name and role of a token; the caller's clock decides whether it has expired."""
    for token in machine.tables.tokens.records():  # at most 1 000
        if compare_digest(token.digest, wanted.digest):
            return {"token": token.name, "role": token.role, "until_utc": token.until_utc or None}
    raise ValueError("no such token")


def _page(what: str, rows: list[Answer], keys: list[str], wanted: given.List, machine: PolicyMachine) -> Answer:
    """Return rows with the key after which the next page starts."""
    more = keys[-1] if len(keys) == wanted.count else None
    return {"policy_epoch": machine.epoch, "next": more, what: rows}


def _show_user(wanted: given.UserArguments, machine: PolicyMachine) -> Answer:
    user = machine.user(wanted.user)
    if user is None:
        raise ValueError(f"no user {wanted.user!r}: `stratamq user list` shows them")
    return _user(user)


def _show_role(wanted: given.RoleArguments, machine: PolicyMachine) -> Answer:
    role = machine.tables.roles.get(wanted.role)
    if role is None:
        raise ValueError(f"no role {wanted.role!r}: `stratamq role list` shows them")
    return _role(role)


def _show_group(wanted: given.GroupArguments, machine: PolicyMachine) -> Answer:
    group = machine.tables.groups.get(wanted.group)
    if group is None:
        raise ValueError(f"no group {wanted.group!r}: `stratamq group list` shows them")
    return _group(group)


def affected_names(takes: StepOutcome) -> Answer:
    """Return the users, roles and other names that a step revokes rights from."""
    return {name: list(names) for name in takes.__struct_fields__ if (names := getattr(takes, name))}


# Raises ValueError: the record does not exist.
READING: dict[str, Callable[[Any, PolicyMachine], Answer]] = {
    "user list": _users,
    "user show": _show_user,
    "role list": _roles,
    "role show": _show_role,
    "group list": _groups,
    "group show": _show_group,
    "ban list": _bans,
    "token list": _tokens,
    "token check": _check_token,
}
