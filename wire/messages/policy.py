"""Control messages about the cluster's policy: the view that nodes follow, and users requested by name.

Records, views and steps are opaque bytes here; ``access/policy`` encodes and decodes them. Edges store only the users
that they requested; credentials are sent for one login alone. A node ignores epochs below its own view's. Rules:
docs/adr/0034.
"""

from typing import Annotated

from msgspec import Meta

from wire.messages.message import ControlMessage
from wire.messages.ranges import MAP_PAGE_BYTES, U32, U64, Counted, Digest, UserName

__all__ = [
    "USERS_ASKED_MAX",
    "AskCredentials",
    "FetchUsers",
    "FollowPolicy",
    "PolicyPaged",
    "PolicyStepped",
    "UserRecords",
]

USERS_ASKED_MAX = 1_000  # names in one request
USER_BYTES_MAX = 64 * 1024  # of one user's record: access/policy/bounds.py keeps all users below it

PolicyBytes = Annotated[bytes, Meta(max_length=MAP_PAGE_BYTES)]
UserNames = Annotated[list[UserName], Meta(max_length=USERS_ASKED_MAX)]
UserBytes = Annotated[bytes, Meta(max_length=USER_BYTES_MAX)]


class FollowPolicy(ControlMessage, tag="FollowPolicy"):
    """Request for the view and its later steps; or for the page at ``offset`` of a view being read."""

    epoch: Counted  # of the sender's view
    page_of: Annotated[int, Meta(ge=-1, lt=1 << 62)] = -1  # epoch of the view that is being read; -1: the newest
    offset: Counted = 0
    digest: Digest = b""  # of the sender's view


class PolicyPaged(ControlMessage, tag="PolicyPage"):
    """Bytes of a whole view from ``offset`` on; FollowPolicy requests the next page."""

    epoch: Counted
    offset: Counted
    size: Counted  # of the whole view
    checksum: U32  # CRC-32 of the whole view
    data: PolicyBytes


class PolicyStepped(ControlMessage, tag="PolicyStep"):
    """The next policy_epoch."""

    step: PolicyBytes


class AskCredentials(ControlMessage, tag="AskCredentials"):
    """Request for a user and its credentials by name, for one login; answered by Users, and counted."""

    request: U64
    user: UserName


class FetchUsers(ControlMessage, tag="AskUsers"):
    """Request for users by name. Any router answers at once from its state, without credentials."""

    request: U64
    names: UserNames


class UserRecords(ControlMessage, tag="Users"):
    """Some of the requested users, each name once; the others follow under the same number."""

    request: U64
    epoch: Counted  # the router's
    names: UserNames
    records: Annotated[list[UserBytes | None], Meta(max_length=USERS_ASKED_MAX)]  # in name order; None: no such user
