"""The records of the policy: users, groups, roles, bans, revoked certificates and tokens, and operators' tokens.

Every string and list has its length here, checked when a record is decoded, and again by ``access/policy/bounds.py``
before a command makes one. ``version`` is the policy_epoch at which a user was changed last: a cached check of a
password of another one is void. ``since`` is the epoch of its last ``disable`` or other password, 0 for none: who was
let in under another one is ended. ``made`` is the epoch at which a user was added: a name that was deleted and added
again is another user, who does not own the sessions of the first.
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
    """Roles, groups and limits of a user: a step tells them to the nodes whose clients are of that user."""

    made: Epoch
    roles: Names = ()
    groups: Names = ()
    limits: Limits = {}


class UserGroup(Struct, frozen=True, array_like=True, omit_defaults=True):
    """Roles and limits that users have together."""

    name: Name
    roles: Names = ()
    limits: Limits = {}


class RuleRecord(Struct, frozen=True, array_like=True, omit_defaults=True):
    """One rule as it was given; the room of the rules reads ``filter``, which may have placeholders."""

    allow: bool
    actions: Annotated[int, Meta(ge=1, le=63)]
    filter: Annotated[str, Meta(min_length=1, max_length=1_024)]
    qos_max: Annotated[int, Meta(ge=0, le=2)] = 2
    listener: Annotated[str, Meta(max_length=32)] = ""
    network: Annotated[str, Meta(max_length=64)] = ""


class RoleRecord(Struct, frozen=True, array_like=True):
    """Rules and limits under a name. Of all roles that a client has, those of a higher priority decide first."""

    name: Name
    rules: Annotated[tuple[RuleRecord, ...], Meta(max_length=1_024)] = ()
    priority: Annotated[int, Meta(ge=-1_000, le=1_000)] = 0
    limits: Limits = {}


class Revoked(Struct, frozen=True, array_like=True, omit_defaults=True):
    """A certificate (issuer and serial number in hexadecimal) or a token (its ``jti``) that is void before its time."""

    kind: Literal["serial", "token"]
    value: Annotated[str, Meta(min_length=1, max_length=256)]
    issuer: Annotated[str, Meta(max_length=1_024)] = ""
    until_utc: Annotated[float, Meta(ge=0, le=1e12)] = 0.0  # when it ends by itself; 0: not known
    reason: Annotated[str, Meta(max_length=256)] = ""


class Token(Struct, frozen=True, array_like=True, omit_defaults=True):
    """An operator's token for the HTTP service. Only the SHA-256 of its 256 random bits is kept, in hexadecimal."""

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    role: Literal["viewer", "operator", "admin"]
    digest: Annotated[str, Meta(max_length=64)]
    until_utc: Annotated[float, Meta(ge=0, le=1e12)] = 0.0  # when it ends by itself; 0: not by itself
    made_utc: Annotated[float, Meta(ge=0, le=1e12)] = 0.0


def ban_key(kind: str, value: str) -> str:
    """Return the key of a ban in the policy."""
    return f"{kind} {value}"


def revoked_key(kind: str, issuer: str, value: str) -> str:
    """Return the key of a revocation in the policy; no two of them have one."""
    return f"{kind} {len(value)} {value} {issuer}"
