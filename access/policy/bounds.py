"""Ranges of commands, so that every policy that commands can create can be sent and stored.

They are checked before a command is proposed and again when it is applied, because an older or hostile router may have
written the log. All routers must decide alike. Therefore no check uses Unicode tables, which differ between Python
versions; NFC is checked before proposing, at one router only.

The largest policy: users of 96 MiB in total, and a view (roles, groups, bans, revocations) of 32 MiB. A Raft snapshot
and the pages of a view stay below the bounds of the map (docs/adr/0019).
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from access.limits.bans import Ban, normal_value
from access.policy import commands as c
from access.policy.records import Revoked, RuleRecord, Token
from access.policy.role_tiers import role_fault
from conf.addresses import parse_network

__all__ = [
    "BANS_MAX",
    "GROUPS_MAX",
    "REVOKED_MAX",
    "ROLES_MAX",
    "TOKENS_MAX",
    "USERS_BYTES_MAX",
    "USERS_MAX",
    "VIEW_BYTES_MAX",
    "out_of_range",
]

USERS_MAX = 200_000
USERS_BYTES_MAX = 96 * 1024 * 1024
VIEW_BYTES_MAX = 32 * 1024 * 1024
ROLES_MAX = 1_024
GROUPS_MAX = 10_000
BANS_MAX = 100_000
REVOKED_MAX = 100_000
TOKENS_MAX = 1_000
TOKEN_NAME_BYTES_MAX = 64
NAME_BYTES_MAX = 256
NAMES_MAX = 64  # roles or groups of one user
LIMITS_MAX = 32
LIMIT_NAME_BYTES_MAX = 32
SECRET_BYTES_MAX = 512
RULES_MAX = 1_024  # of a role
FILTER_BYTES_MAX = 1_024
ROLE_BYTES_MAX = 128 * 1024  # of all its rules' text: a step with one role fits a page
BAN_BYTES_MAX = 1_024  # of the banned value: a longer client ID can be banned by user, address or certificate
REASON_BYTES_MAX = 256
ISSUER_BYTES_MAX = 1_024
IDENTIFIER_BYTES_MAX = 64
NUMBER_MAX = 1 << 62
TIME_MAX = 1e12
ACTIONS_MAX = 63
PRIORITY_MAX = 1_000
DIGEST_DIGITS = 64  # of a SHA-256
SERIAL_DIGITS = frozenset("0123456789abcdef")


def out_of_range(command: c.PolicyCommand) -> str:
    """Return why a command is refused in any policy, "" if it may be applied."""
    judge = RANGES.get(type(command))
    return judge(command) if judge is not None else "no command about the policy"


def _order(command: c.PolicyOrder) -> str:
    if isinstance(command.command, c.PolicyOrder):
        return "an order in an order"
    return _name("an order's identifier", command.identifier, IDENTIFIER_BYTES_MAX) or out_of_range(command.command)


def _add_user(command: c.AddUser) -> str:
    return (
        _name("a user's name", command.name)
        or _secrets(command.record, command.verifier)
        or _names("role", command.roles)
        or _names("group", command.groups)
        or _limits(command.limits)
    )


def _change_user(command: c.ChangeUser) -> str:
    return (
        _name("a user's name", command.name)
        or _names("role", command.roles or ())
        or _names("group", command.groups or ())
        or _limits(command.limits or {})
    )


def _set_password(command: c.SetPassword) -> str:
    return _name("a user's name", command.name) or _secrets(command.record, command.verifier)


def _put_role(command: c.PutRole) -> str:
    if len(command.rules) > RULES_MAX:
        return f"a role of {len(command.rules)} rules: at most {RULES_MAX}"
    wrong = _name("a role's name", command.name) or next(filter(None, map(_rule, command.rules)), "")
    if wrong:
        return wrong
    size = sum(len(rule.filter.encode()) + len(rule.listener) + len(rule.network) + 8 for rule in command.rules)
    if size > ROLE_BYTES_MAX:
        return f"the rules of a role have {size} bytes, at most {ROLE_BYTES_MAX}"
    if abs(command.priority) > PRIORITY_MAX:
        return f"the priority of a role is -{PRIORITY_MAX} to {PRIORITY_MAX}"
    return _limits(command.limits) or role_fault(command.rules)


def _put_group(command: c.PutGroup) -> str:
    return _name("a group's name", command.name) or _names("role", command.roles) or _limits(command.limits)


def _named(command: c.SetDisabled | c.DeleteUser | c.DeleteRole | c.DeleteGroup) -> str:
    return _name("a name", command.name)


def _add_ban(command: c.AddBan) -> str:
    ban: Ban = command.ban
    return (
        _ban(ban.kind, ban.value)
        or _time("the end of a ban", ban.until_utc)
        or _text("the reason of a ban", ban.reason, REASON_BYTES_MAX)
    )


def _delete_ban(command: c.DeleteBan) -> str:
    return _ban(command.kind, command.value)


def _revoke(command: c.Revoke) -> str:
    revoked: Revoked = command.revoked
    return (
        _revoked(revoked.kind, revoked.issuer, revoked.value)
        or _time("the end of a revocation", revoked.until_utc)
        or _text("the reason of a revocation", revoked.reason, REASON_BYTES_MAX)
    )


def _unrevoke(command: c.Unrevoke) -> str:
    return _revoked(command.kind, command.issuer, command.value)


def _add_token(command: c.AddToken) -> str:
    token: Token = command.token
    if token.role not in ("viewer", "operator", "admin") or len(token.digest) != DIGEST_DIGITS:
        return "a token has the role viewer, operator or admin, and a SHA-256"
    if not SERIAL_DIGITS.issuperset(token.digest):
        return "a SHA-256 is written in hexadecimal, in small letters"
    return (
        _name("a token's name", token.name, TOKEN_NAME_BYTES_MAX)
        or _time("the end of a token", token.until_utc)
        or _time("the time of a token", token.made_utc)
    )


def _delete_token(command: c.DeleteToken) -> str:
    return _name("a token's name", command.name, TOKEN_NAME_BYTES_MAX)


def _prune(command: c.Prune) -> str:
    return _time("the time of a clean-up", command.now_utc)


RANGES: dict[type[c.PolicyCommand], Callable[[Any], str]] = {
    c.PolicyOrder: _order,
    c.AddUser: _add_user,
    c.ChangeUser: _change_user,
    c.SetPassword: _set_password,
    c.SetDisabled: _named,
    c.DeleteUser: _named,
    c.PutRole: _put_role,
    c.DeleteRole: _named,
    c.PutGroup: _put_group,
    c.DeleteGroup: _named,
    c.AddBan: _add_ban,
    c.DeleteBan: _delete_ban,
    c.Revoke: _revoke,
    c.Unrevoke: _unrevoke,
    c.AddToken: _add_token,
    c.DeleteToken: _delete_token,
    c.Prune: _prune,
}


# --- parts


def _rule(rule: RuleRecord) -> str:
    if not 1 <= rule.actions <= ACTIONS_MAX or not 0 <= rule.qos_max <= 2:
        return "a rule names actions of 1 to 63 and a QoS of 0 to 2"
    too_long = _text("the filter of a rule", rule.filter, FILTER_BYTES_MAX)
    if too_long:
        return too_long
    try:
        if rule.network and _has_other_spelling("network", rule.network):
            return f"the network of a rule is written {normal_value('network', rule.network)}"
    except ValueError as error:
        return f"a rule cannot be kept: {error}"
    return _text("the listener of a rule", rule.listener, LIMIT_NAME_BYTES_MAX)


def _ban(kind: str, value: str) -> str:
    too_long = _text("a ban", value, BAN_BYTES_MAX)
    if too_long:
        return too_long
    try:
        if _has_other_spelling(kind, value):
            return f"that {kind} is written {normal_value(kind, value)}"
    except ValueError as error:
        return str(error)
    return ""


def _has_other_spelling(kind: str, value: str) -> bool:
    if kind == "network":
        parse_network(value)
    return normal_value(kind, value) != value


def _revoked(kind: str, issuer: str, value: str) -> str:
    if kind not in ("serial", "token"):
        return "serial numbers and tokens are revoked: nothing else"
    if kind == "serial" and (not issuer or value.startswith("0") or not SERIAL_DIGITS.issuperset(value)):
        return "a serial number is hexadecimal in small letters without leading zeros, and has an issuer"
    if kind == "token" and issuer:
        return "a token is revoked by its jti alone: it has no issuer here"
    return _name(f"a {kind}", value) or _text("an issuer", issuer, ISSUER_BYTES_MAX)


def _secrets(record: str, verifier: str) -> str:
    for secret, kinds in ((record, ("$argon2id$",)), (verifier, ("SCRAM-SHA-256$", "SCRAM-SHA-512$"))):
        if secret and not secret.startswith(kinds):
            return f"a record begins with {' or '.join(kinds)}"
        if not all("!" <= letter <= "~" for letter in secret) or len(secret) > SECRET_BYTES_MAX:
            return f"a record has at most {SECRET_BYTES_MAX} characters of ASCII, none of them a space"
    return ""


def _limits(limits: Mapping[str, int]) -> str:
    if len(limits) > LIMITS_MAX:
        return f"{len(limits)} limits: at most {LIMITS_MAX}"
    wrong = (_name("a limit", key, LIMIT_NAME_BYTES_MAX) or _number("a limit", most) for key, most in limits.items())
    return next(filter(None, wrong), "")


def _names(kind: str, names: Iterable[str]) -> str:
    listed = tuple(names)
    if len(listed) > NAMES_MAX or len(set(listed)) < len(listed):
        return f"at most {NAMES_MAX} {kind}s, none of them twice"
    return next(filter(None, (_name(f"a {kind}", name) for name in listed)), "")


def _name(subject: str, name: str, most: int = NAME_BYTES_MAX) -> str:
    if not name:
        return f"{subject} is empty"
    if any(letter < " " or "\x7f" <= letter < "\xa0" for letter in name):
        return f"{subject} has a control character"
    return _text(subject, name, most)


def _text(subject: str, text: str, most: int) -> str:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return f"{subject} has half of a character"
    return f"{subject} of {size} bytes is too long: at most {most}" if size > most else ""


def _number(subject: str, number: int) -> str:
    return "" if 0 <= number < NUMBER_MAX else f"{subject} is out of range"


def _time(subject: str, seconds: float) -> str:
    return "" if math.isfinite(seconds) and 0 <= seconds <= TIME_MAX else f"{subject} is out of range"
