"""Verbs about users, rights, bans, revocations and tokens, judged already, as commands of the policy.

The one clock here is the caller's: a ban ``for_s`` ends at a time that the command names. Nothing here proposes or
sends; the machine judges the command again, when it is supposed and when it is committed.
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
    """Return when something ends; 0: not by itself. A time that cannot be told never shortens it."""
    if not for_s:
        return 0.0
    until = now_utc + for_s
    if not math.isfinite(until) or not 0 < until <= UNTIL_MAX:
        raise ValueError("the clock of this router is wrong: no end can be told")
    return until


# verb -> its arguments and the time of the router that takes the order, in seconds since the epoch, into a command.
# Raises ValueError: they name nothing that can be stored; one line for the operator.
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
