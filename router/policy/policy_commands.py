"""Validated requests about users, rights, bans, revocations and tokens, as commands of the policy.

Times come from the caller's clock: the end of a ban with ``for_s`` is fixed in the command. These functions propose and
send nothing. The machine validates the command again, before its proposal and at its commit.
"""

import math
from collections.abc import Callable
from typing import Any

from access.limits.bans import normal_value
from access.operators import arguments as given
from access.policy import commands
from access.policy.records import Ban, Revoked, RuleRecord, Token

__all__ = ["CHANGING"]

UNTIL_MAX = 1e12  # as in the records


def _user_add(wanted: given.UserAdd, _: float) -> commands.SimpleCommand:
    roles, groups = tuple(wanted.roles), tuple(wanted.groups)
    return commands.AddUser(wanted.user, wanted.record, wanted.verifier, roles, groups, wanted.limits)


def _user_change(wanted: given.UserChange, _: float) -> commands.SimpleCommand:
    roles = None if wanted.roles is None else tuple(wanted.roles)
    groups = None if wanted.groups is None else tuple(wanted.groups)
    return commands.ChangeUser(wanted.user, roles, groups, wanted.limits)


def _role_put(wanted: given.RolePut, _: float) -> commands.SimpleCommand:
    rules = tuple(RuleRecord(*(getattr(rule, name) for name in RuleRecord.__struct_fields__)) for rule in wanted.rules)
    return commands.PutRole(wanted.role, rules, wanted.priority, wanted.limits)


def _ban_add(wanted: given.BanAdd, now_utc: float) -> commands.SimpleCommand:
    value = normal_value(wanted.kind, wanted.value)
    return commands.AddBan(Ban(wanted.kind, value, _until(wanted.for_s, now_utc), wanted.reason))


def _revoke(wanted: given.RevokeArguments, now_utc: float) -> commands.SimpleCommand:
    until = _until(wanted.for_s, now_utc)
    return commands.Revoke(Revoked(wanted.kind, wanted.value, wanted.issuer, until, wanted.reason))


def _token_create(wanted: given.TokenCreate, now_utc: float) -> commands.SimpleCommand:
    until = _until(wanted.for_s, now_utc)
    return commands.AddToken(Token(wanted.name, wanted.role, wanted.digest, until, now_utc))


def _until(for_s: float, now_utc: float) -> float:
    """Return the end time; 0 means no end. An invalid clock raises instead of shortening a ban."""
    if not for_s:
        return 0.0
    until = now_utc + for_s
    if not math.isfinite(until) or not 0 < until <= UNTIL_MAX:
        raise ValueError("the clock of this router is wrong: no end can be told")
    return until


# Verb -> function of its arguments and the router's UTC time, which returns the command.
# Raises ValueError: the arguments cannot be stored; the text is one line for the operator.
CHANGING: dict[str, Callable[[Any, float], commands.SimpleCommand]] = {
    "user add": _user_add,
    "user change": _user_change,
    "user password": lambda wanted, _: commands.SetPassword(wanted.user, wanted.record, wanted.verifier),
    "user disable": lambda wanted, _: commands.SetDisabled(wanted.user, True),
    "user enable": lambda wanted, _: commands.SetDisabled(wanted.user, False),
    "user delete": lambda wanted, _: commands.DeleteUser(wanted.user),
    "role put": _role_put,
    "role delete": lambda wanted, _: commands.DeleteRole(wanted.role),
    "group put": lambda wanted, _: commands.PutGroup(wanted.group, tuple(wanted.roles), wanted.limits),
    "group delete": lambda wanted, _: commands.DeleteGroup(wanted.group),
    "ban add": _ban_add,
    "ban del": lambda wanted, _: commands.DeleteBan(wanted.kind, normal_value(wanted.kind, wanted.value)),
    "revoke": _revoke,
    "token create": _token_create,
    "token revoke": lambda wanted, _: commands.DeleteToken(wanted.name),
    "unrevoke": lambda wanted, _: commands.Unrevoke(wanted.kind, wanted.issuer, wanted.value),
}
