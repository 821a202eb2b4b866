"""One step of the policy: the records that changed, and which of them took something away.

``users`` names users only: nodes do not hold them, and let go of one that they had asked for. ``takes`` names what a
node must judge again before it acknowledges the step; a step that only gives takes nothing, and nobody waits for it. A
user whose roles, groups or limits changed comes with them, so that its clients are judged by them and stay.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from access.policy.records import Ban, Epoch, Name, Revoked, RoleRecord, UserEntitlements, UserGroup
from wire.decoding import strictly
from wire.messages.digests import digest_of
from wire.messages.ranges import Digest

__all__ = ["RECORDS_MAX", "PolicyStep", "StepOutcome", "decode_step", "digest_behind", "encode_step"]

RECORDS_MAX = 64  # of a step: ``Prune`` removes as many at a time, so a step fits a page

Key = Annotated[str, Meta(max_length=2_048)]


class StepOutcome(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """Names of what lost a right, or may have: a role may hold a deny, so each change of an existing one counts.

    Attributes:
        users: Nobody who was let in as one of them stays: deleted, disabled, or with another password.
        changed: Users with other roles, groups or limits.
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
    """The next policy_epoch; None instead of a record says that it is gone."""

    epoch: Epoch
    users: Annotated[tuple[Name, ...], Meta(max_length=RECORDS_MAX)] = ()
    groups: Annotated[dict[Name, UserGroup | None], Meta(max_length=RECORDS_MAX)] = {}
    roles: Annotated[dict[Name, RoleRecord | None], Meta(max_length=RECORDS_MAX)] = {}
    bans: Annotated[dict[Key, Ban | None], Meta(max_length=RECORDS_MAX)] = {}
    revoked: Annotated[dict[Key, Revoked | None], Meta(max_length=RECORDS_MAX)] = {}
    takes: StepOutcome = StepOutcome()
    before: Digest = b""  # of the policy that it changes (``wire/messages/digests.py``)


_decoder = msgspec.msgpack.Decoder(PolicyStep)
_encoder = msgspec.msgpack.Encoder(order="deterministic")

# Returns the step. Raises Unreadable: the payload is none, or a value is out of its range.
decode_step = strictly(_decoder.decode, "policy step")


def encode_step(step: PolicyStep) -> bytes:
    """Return the bytes of a step; the same at every router."""
    return _encoder.encode(step)


def digest_behind(step: PolicyStep) -> bytes:
    """Return the digest of the policy behind a step."""
    return digest_of(_encoder.encode(step))
