"""One step of the policy: the changed records, and those that lost a right.

``users`` holds names only: nodes do not store users, and discard the ones that they requested. ``takes`` names the
records that a node must re-authorize before it acknowledges the step; no verb waits for a step that only adds rights. A
user with changed roles, groups or limits is sent with them, so its clients are re-authorized and stay.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from access.policy.records import Ban, Epoch, Name, Revoked, RoleRecord, UserEntitlements, UserGroup
from wire.decoding import strictly
from wire.messages.digests import digest_of
from wire.messages.ranges import Digest

__all__ = ["RECORDS_MAX", "PolicyStep", "StepOutcome", "decode_step", "digest_behind", "encode_step"]

RECORDS_MAX = 64  # of a step: ``Prune`` removes at most as many at once, so a step fits a page

Key = Annotated[str, Meta(max_length=2_048)]


class StepOutcome(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """Names of records that may have lost a right; a role may hold a deny, so each change of an existing one counts.

    Attributes:
        users: Deleted, disabled, or with a new password: their connections are closed.
        changed: Users with changed roles, groups or limits.
    """

    users: Annotated[tuple[Name, ...], Meta(max_length=RECORDS_MAX)] = ()
    groups: Annotated[tuple[Name, ...], Meta(max_length=RECORDS_MAX)] = ()
    roles: Annotated[tuple[Name, ...], Meta(max_length=RECORDS_MAX)] = ()
    bans: Annotated[tuple[Key, ...], Meta(max_length=RECORDS_MAX)] = ()
    revoked: Annotated[tuple[Key, ...], Meta(max_length=RECORDS_MAX)] = ()
    changed: Annotated[dict[Name, UserEntitlements], Meta(max_length=RECORDS_MAX)] = {}

    def __bool__(self) -> bool:
        return bool(self.users or self.groups or self.roles or self.bans or self.revoked or self.changed)


class PolicyStep(msgspec.Struct, frozen=True, array_like=True):
    """The next policy_epoch; None instead of a record removes it."""

    epoch: Epoch
    users: Annotated[tuple[Name, ...], Meta(max_length=RECORDS_MAX)] = ()
    groups: Annotated[dict[Name, UserGroup | None], Meta(max_length=RECORDS_MAX)] = {}
    roles: Annotated[dict[Name, RoleRecord | None], Meta(max_length=RECORDS_MAX)] = {}
    bans: Annotated[dict[Key, Ban | None], Meta(max_length=RECORDS_MAX)] = {}
    revoked: Annotated[dict[Key, Revoked | None], Meta(max_length=RECORDS_MAX)] = {}
    takes: StepOutcome = StepOutcome()
    before: Digest = b""  # of the policy before the step (``wire/messages/digests.py``)


_decoder = msgspec.msgpack.Decoder(PolicyStep)
_encoder = msgspec.msgpack.Encoder(order="deterministic")

# Returns the step. Raises Unreadable: the payload is invalid, or a value is out of its range.
decode_step = strictly(_decoder.decode, "policy step")


def encode_step(step: PolicyStep) -> bytes:
    """Return the bytes of a step; the same at every router."""
    return _encoder.encode(step)


def digest_behind(step: PolicyStep) -> bytes:
    """Return the digest of the policy after a step."""
    return digest_of(_encoder.encode(step))
