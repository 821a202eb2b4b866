"""The records of the policy: users, groups, roles, bans, revoked certificates and tokens, and operators' tokens.

Every string and list has a bound, checked when a record is decoded, and by ``access/policy/bounds.py`` before a command
creates one. ``version`` is the policy_epoch of a user's last change; a cached password check of another version is
invalid. ``since`` is the epoch of the user's last ``disable`` or password change, 0 for none; connections admitted
under another value are closed. ``made`` is the epoch at which the user was added. A deleted and re-added name is a
different user, without the sessions of the first.
"""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from access.limits.bans import Ban

__all__ = [
    "Ban",
    "Epoch",
    "Limits",
    "Name",
    "Names",
    "Revoked",
    "RoleRecord",
    "RuleRecord",
    "Token",
    "User",
    "UserEntitlements",
    "UserGroup",
    "ban_key",
    "revoked_key",
]

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]
Names: TypeAlias = Annotated[tuple[Name, ...], Meta(max_length=64)]
Epoch: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 62)]
Secret: TypeAlias = Annotated[str, Meta(max_length=512)]
LimitName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=32)]
Limits: TypeAlias = Annotated[dict[LimitName, Annotated[int, Meta(ge=0, lt=1 << 62)]], Meta(max_length=32)]


class User(Struct, frozen=True, array_like=True, omit_defaults=True):
    """One user of the cluster. ``record`` is an argon2id hash, ``verifier`` one of SCRAM; "" is none."""

    name: Name
    version: Epoch
    made: Epoch
    disabled: bool = False
    record: Secret = ""
    verifier: Secret = ""
    roles: Names = ()
    groups: Names = ()
    limits: Limits = {}
    since: Epoch = 0


class UserEntitlements(Struct, frozen=True, array_like=True, omit_defaults=True):
    """Roles, groups and limits of a user, sent in a step to nodes with clients of that user."""

    made: Epoch
    roles: Names = ()
    groups: Names = ()
    limits: Limits = {}


class UserGroup(Struct, frozen=True, array_like=True, omit_defaults=True):
    """Roles and limits shared by its users."""

    name: Name
    roles: Names = ()
    limits: Limits = {}


class RuleRecord(Struct, frozen=True, array_like=True, omit_defaults=True):
    """One rule as it was given; ``access.rules`` parses ``filter``, which may have placeholders."""

    allow: bool
    actions: Annotated[int, Meta(ge=1, le=63)]
    filter: Annotated[str, Meta(min_length=1, max_length=1_024)]
    qos_max: Annotated[int, Meta(ge=0, le=2)] = 2
    listener: Annotated[str, Meta(max_length=32)] = ""
    network: Annotated[str, Meta(max_length=64)] = ""


class RoleRecord(Struct, frozen=True, array_like=True):
    """Named rules and limits. Among a client's roles, those with a higher priority decide first."""

    name: Name
    rules: Annotated[tuple[RuleRecord, ...], Meta(max_length=1_024)] = ()
    priority: Annotated[int, Meta(ge=-1_000, le=1_000)] = 0
    limits: Limits = {}


class Revoked(Struct, frozen=True, array_like=True, omit_defaults=True):
    """A certificate (issuer and serial number in hexadecimal) or a token (its ``jti``) that is revoked before its
    expiry.
    """

    kind: Literal["serial", "token"]
    value: Annotated[str, Meta(min_length=1, max_length=256)]
    issuer: Annotated[str, Meta(max_length=1_024)] = ""
    until_utc: Annotated[float, Meta(ge=0, le=1e12)] = 0.0  # its own expiry; 0: not known
    reason: Annotated[str, Meta(max_length=256)] = ""


class Token(Struct, frozen=True, array_like=True, omit_defaults=True):
    """An operator's token for the HTTP service. Only the SHA-256 of its 256 random bits is stored, in hexadecimal."""

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    role: Literal["viewer", "operator", "admin"]
    digest: Annotated[str, Meta(max_length=64)]
    until_utc: Annotated[float, Meta(ge=0, le=1e12)] = 0.0  # its expiry; 0: none
    made_utc: Annotated[float, Meta(ge=0, le=1e12)] = 0.0


def ban_key(kind: str, value: str) -> str:
    """Return the key of a ban in the policy."""
    return f"{kind} {value}"


def revoked_key(kind: str, issuer: str, value: str) -> str:
    """Return the unique key of a revocation in the policy."""
    return f"{kind} {len(value)} {value} {issuer}"
