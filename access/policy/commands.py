"""The commands about the policy in the routers' log, as data.

``access/policy/machine.py`` carries them out; ``access/policy/bounds.py`` has the ranges that are judged before they
are proposed and again when they are applied. A router reads its log entry as one of these or as one about the map:
the tags of both differ. There is no clock in the log: a time in a command is its proposer's.
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
    """Root of the commands. The tag is the format: it stays when a class gets another name."""


class AddUser(_Command, tag="AddUser"):
    """A new user."""

    name: str
    record: str = ""
    verifier: str = ""
    roles: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    limits: dict[str, int] = {}


class ChangeUser(_Command, tag="ChangeUser"):
    """Other roles, groups or limits of a user; None leaves them."""

    name: str
    roles: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None
    limits: dict[str, int] | None = None


class SetPassword(_Command, tag="SetPassword"):
    """Other credentials of a user; the former ones are void."""

    name: str
    record: str = ""
    verifier: str = ""


class SetDisabled(_Command, tag="SetDisabled"):
    """Disable a user, or enable it again."""

    name: str
    disabled: bool


class DeleteUser(_Command, tag="DeleteUser"):
    """Remove a user; a later one of that name is another user."""

    name: str


class PutRole(_Command, tag="PutRole"):
    """A new role, or other rules and limits for one."""

    name: str
    rules: tuple[RuleRecord, ...] = ()
    priority: int = 0
    limits: dict[str, int] = {}


class DeleteRole(_Command, tag="DeleteRole"):
    """Remove a role that no user and no group has."""

    name: str


class PutGroup(_Command, tag="PutGroup"):
    """A new group, or other roles and limits for one."""

    name: str
    roles: tuple[str, ...] = ()
    limits: dict[str, int] = {}


class DeleteGroup(_Command, tag="DeleteGroup"):
    """Remove a group that no user has."""

    name: str


class AddBan(_Command, tag="AddBan"):
    """A new ban, or another end and reason for one."""

    ban: Ban


class DeleteBan(_Command, tag="DeleteBan"):
    """Take a ban back."""

    kind: str
    value: str


class Revoke(_Command, tag="Revoke"):
    """Make a certificate or a token void."""

    revoked: Revoked


class Unrevoke(_Command, tag="Unrevoke"):
    """Take a revocation back."""

    kind: str
    issuer: str
    value: str


class AddToken(_Command, tag="AddToken"):
    """A new token of an operator; one of that name that stands is refused."""

    token: Token


class DeleteToken(_Command, tag="DeleteToken"):
    """Make an operator's token void."""

    name: str


class Prune(_Command, tag="Prune"):
    """The leader's: remove bans, revocations and tokens that had ended at this time, some of them at a time."""

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
    """An operator's command with the identifier that the command line gave it: it is carried out once."""

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
        Unreadable: The data is none.
    """
    return _decode(data)


def is_readable(data: Payload) -> bool:
    """Return whether every router can read a command: its parts keep to the ranges of their types."""
    try:
        _decode(data)
    except Unreadable:
        return False
    return True
