"""The policy commands of the routers' log.

``access/policy/machine.py`` applies them; ``access/policy/bounds.py`` holds their ranges, checked before proposing and
again when applying. A log entry holds one of these or a map command: their tags differ. The log has no clock: a time in
a command is its proposer's.
"""

from typing import TypeAlias

import msgspec

from access.policy.records import Ban, Revoked, RuleRecord, Token
from wire.decoding import Payload, Unreadable, strictly

__all__ = [
    "AddBan",
    "AddToken",
    "AddUser",
    "ChangeUser",
    "DeleteBan",
    "DeleteGroup",
    "DeleteRole",
    "DeleteToken",
    "DeleteUser",
    "PolicyCommand",
    "PolicyOrder",
    "Prune",
    "PutGroup",
    "PutRole",
    "Revoke",
    "SetDisabled",
    "SetPassword",
    "SimpleCommand",
    "Unrevoke",
    "decode_policy_command",
    "encode_policy_command",
    "is_readable",
]


class _Command(msgspec.Struct):
    """Root of the commands. The tag is the format: it stays when a class is renamed."""


class AddUser(_Command, tag="AddUser"):
    """Add a user."""

    name: str
    record: str = ""
    verifier: str = ""
    roles: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    limits: dict[str, int] = {}


class ChangeUser(_Command, tag="ChangeUser"):
    """Replace roles, groups or limits of a user; None keeps them."""

    name: str
    roles: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None
    limits: dict[str, int] | None = None


class SetPassword(_Command, tag="SetPassword"):
    """Replace the credentials of a user; the former ones become invalid."""

    name: str
    record: str = ""
    verifier: str = ""


class SetDisabled(_Command, tag="SetDisabled"):
    """Disable a user, or enable it again."""

    name: str
    disabled: bool


class DeleteUser(_Command, tag="DeleteUser"):
    """Remove a user; a later one of the same name is a different user."""

    name: str


class PutRole(_Command, tag="PutRole"):
    """Create or replace a role."""

    name: str
    rules: tuple[RuleRecord, ...] = ()
    priority: int = 0
    limits: dict[str, int] = {}


class DeleteRole(_Command, tag="DeleteRole"):
    """Remove a role without users and groups."""

    name: str


class PutGroup(_Command, tag="PutGroup"):
    """Create or replace a group."""

    name: str
    roles: tuple[str, ...] = ()
    limits: dict[str, int] = {}


class DeleteGroup(_Command, tag="DeleteGroup"):
    """Remove a group without users."""

    name: str


class AddBan(_Command, tag="AddBan"):
    """Create or replace a ban."""

    ban: Ban


class DeleteBan(_Command, tag="DeleteBan"):
    """Remove a ban."""

    kind: str
    value: str


class Revoke(_Command, tag="Revoke"):
    """Revoke a certificate or a token."""

    revoked: Revoked


class Unrevoke(_Command, tag="Unrevoke"):
    """Remove a revocation."""

    kind: str
    issuer: str
    value: str


class AddToken(_Command, tag="AddToken"):
    """Add a token of an operator; refused if the name exists."""

    token: Token


class DeleteToken(_Command, tag="DeleteToken"):
    """Remove an operator's token."""

    name: str


class Prune(_Command, tag="Prune"):
    """From the leader: remove bans, revocations and tokens that expired by this time, a bounded number at once."""

    now_utc: float


SimpleCommand: TypeAlias = (
    AddUser
    | ChangeUser
    | SetPassword
    | SetDisabled
    | DeleteUser
    | PutRole
    | DeleteRole
    | PutGroup
    | DeleteGroup
    | AddBan
    | DeleteBan
    | Revoke
    | Unrevoke
    | AddToken
    | DeleteToken
    | Prune
)


class PolicyOrder(_Command, tag="PolicyOrder"):
    """An operator's command with its unique identifier: it is applied once."""

    identifier: str
    command: SimpleCommand


PolicyCommand: TypeAlias = SimpleCommand | PolicyOrder

_decoder: msgspec.msgpack.Decoder[PolicyCommand] = msgspec.msgpack.Decoder(PolicyCommand)
_decode = strictly(_decoder.decode, "policy command")


def encode_policy_command(command: PolicyCommand) -> bytes:
    """Return the data of a log entry."""
    return msgspec.msgpack.encode(command)


def decode_policy_command(data: Payload) -> PolicyCommand:
    """Return the command of a log entry.

    Raises:
        Unreadable: The data is not a command.
    """
    return _decode(data)


def is_readable(data: Payload) -> bool:
    """Return whether every router can decode a command: its fields are in the ranges of their types."""
    try:
        _decode(data)
    except Unreadable:
        return False
    return True
