"""Control messages about users' resources at storage nodes, exchanged between these nodes on demand.

Decision: docs/adr/0135-users-over-all-partitions.md.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from wire.messages.message import ControlMessage
from wire.messages.ranges import Counted, UserName

__all__ = ["COUNTS_MAX", "UserCount", "UserCounts"]

COUNTS_MAX = 500  # of one message


class UserCount(msgspec.Struct, array_like=True):
    """Resources of one user in the partitions of one storage node."""

    user: UserName
    sessions: Counted  # stored ones
    retained: Counted  # topics
    asked: bool = False  # the sender decides about this user: reply, and send changes for a minute
    retained_bytes: Counted = 0  # of the payloads of those topics


class UserCounts(ControlMessage, tag="UserCounts"):
    """Storage node to storage node, on demand; without a reply."""

    counts: Annotated[list[UserCount], Meta(max_length=COUNTS_MAX)]
