"""Control messages about the cluster's policy: the view that nodes follow, users asked for by name.

Records, views and steps are bytes here, because this room knows no rights: ``access/policy`` encodes them and reads
them. Edges hold no users but those that they asked for; credentials come for one login alone. A node takes nothing of
an epoch below its own view's. Rules: docs/adr/0034.
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

USERS_ASKED_MAX = 1_000  # names of one question
USER_BYTES_MAX = 64 * 1024  # of one user's record: access/policy/bounds.py keeps every user below it

PolicyBytes = Annotated[bytes, Meta(max_length=MAP_PAGE_BYTES)]
UserNames = Annotated[list[UserName], Meta(max_length=USERS_ASKED_MAX)]
UserBytes = Annotated[bytes, Meta(max_length=USER_BYTES_MAX)]


class FollowPolicy(ControlMessage, tag="FollowPolicy"):
    """Send me the view, and its steps from then on; or the page at ``offset`` of the view that I am reading."""

    epoch: Counted  # of the sender's view
    page_of: Annotated[int, Meta(ge=-1, lt=1 << 62)] = -1  # epoch of the view that is being read; -1: the newest
    offset: Counted = 0
    digest: Digest = b""  # of the sender's view


class PolicyPaged(ControlMessage, tag="PolicyPage"):
    """Bytes of a whole view from ``offset`` on; the next page is asked for with FollowPolicy."""

    epoch: Counted
    offset: Counted
    size: Counted  # of the whole view
    checksum: U32  # CRC-32 of the whole view
    data: PolicyBytes


class PolicyStepped(ControlMessage, tag="PolicyStep"):
    """The next policy_epoch."""

    step: PolicyBytes


class AskCredentials(ControlMessage, tag="AskCredentials"):
    """Which user has this name, and how does it prove itself? Asked for one login; answered by Users, and counted."""

    request: U64
    user: UserName


class FetchUsers(ControlMessage, tag="AskUsers"):
    """Which users have these names? Any router answers at once, by what it has, without credentials."""

    request: U64
    names: UserNames


class UserRecords(ControlMessage, tag="Users"):
    """Some of the users that were asked for, each name once; the others follow under the same number."""

    request: U64
    epoch: Counted  # the router's
    names: UserNames
    records: Annotated[list[UserBytes | None], Meta(max_length=USERS_ASKED_MAX)]  # in the order of names; None: nobody
