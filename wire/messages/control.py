"""Union of the control messages, and its codec."""

import struct
from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec

from wire.decoding import Payload, strictly
from wire.messages.disconnected_sessions import (
    DisconnectedListed,
    DisconnectedRevoked,
    ListDisconnected,
    RevokeDisconnected,
)
from wire.messages.nodes import (
    Changed,
    DrainNode,
    FollowMap,
    Heartbeat,
    HeartbeatReply,
    Leave,
    MapPage,
    MapStep,
    Moved,
    Registered,
    RegisterRequest,
    Relay,
    Relayed,
    RequestChange,
    RequestRefused,
)
from wire.messages.operators import Admin, AdminReply
from wire.messages.orders import NodeOrdered, OrderNode
from wire.messages.policy import (
    AskCredentials,
    FetchUsers,
    FollowPolicy,
    PolicyPaged,
    PolicyStepped,
    UserRecords,
)
from wire.messages.queries import Query, QueryResult, StartTrace, StopTrace
from wire.messages.redispatch import RedispatchOrder, RedispatchReply
from wire.messages.retained import (
    DeliverRetained,
    ReadRetained,
    ReadRetainedAll,
    RetainedDelivered,
    RetainedNone,
    RetainedPage,
)
from wire.messages.routes import (
    AddRoutes,
    Invalidate,
    Invalidated,
    RemoveRoutes,
    ReportRoutes,
    Resolve,
    Resolved,
    RoutesAdded,
)
from wire.messages.running_traces import RunningTrace
from wire.messages.sessions import (
    Claims,
    FiltersListed,
    InboundRecorded,
    InboundReleased,
    KickSession,
    ListFilters,
    PollClaims,
    RecordInbound,
    ReleaseInbound,
    SessionExpired,
    SessionKicked,
    SessionSubscribed,
    SessionUnsubscribed,
    SubscribeSession,
    UnsubscribeSession,
)
from wire.messages.user_counts import UserCounts
from wire.messages.wills import FireWill, WillFired

__all__ = [
    "CONTROLS_BYTES",
    "CONTROLS_MAX",
    "Control",
    "count_of_controls",
    "decode_control",
    "decode_controls",
    "encode_control",
    "join_controls",
]

CONTROLS_MAX = 24  # messages of a CONTROLS frame: a storage node needs at most about 2 ms for as many CONNECTs
CONTROLS_BYTES = 64 * 1024  # beyond it the next message starts another frame; a single one has a CONTROL frame


Control = (
    RegisterRequest
    | Registered
    | RequestRefused
    | Heartbeat
    | HeartbeatReply
    | FollowMap
    | MapPage
    | MapStep
    | RequestChange
    | DrainNode
    | Leave
    | Changed
    | Resolve
    | Resolved
    | AddRoutes
    | RoutesAdded
    | RemoveRoutes
    | ReportRoutes
    | Invalidate
    | Invalidated
    | Moved
    | SessionExpired
    | KickSession
    | SessionKicked
    | Relay
    | Relayed
    | SubscribeSession
    | SessionSubscribed
    | UnsubscribeSession
    | SessionUnsubscribed
    | ListFilters
    | FiltersListed
    | RecordInbound
    | InboundRecorded
    | ReleaseInbound
    | InboundReleased
    | ReadRetained
    | ReadRetainedAll
    | RetainedPage
    | RetainedNone
    | DeliverRetained
    | ListDisconnected
    | DisconnectedListed
    | RevokeDisconnected
    | DisconnectedRevoked
    | RetainedDelivered
    | PollClaims
    | Claims
    | FireWill
    | WillFired
    | RedispatchOrder
    | RedispatchReply
    | Admin
    | AdminReply
    | FollowPolicy
    | PolicyPaged
    | PolicyStepped
    | AskCredentials
    | FetchUsers
    | UserRecords
    | OrderNode
    | NodeOrdered
    | Query
    | QueryResult
    | StartTrace
    | StopTrace
    | UserCounts
    | RunningTrace
)


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Control] = msgspec.msgpack.Decoder(Control)

# Returns the payload of a CONTROL frame.
encode_control: Callable[[Control], bytes] = _encoder.encode

# Returns the message of a CONTROL frame. Raises Unreadable: the payload is not one of the messages (an unknown tag
# included), or a value is out of its range.
decode_control: Callable[[Payload], Control] = strictly(_decoder.decode, "CONTROL")

_ARRAY = struct.Struct(">BH")  # msgpack's array of 16 bits
_ARRAY_16 = 0xDC
_array_decoder = msgspec.msgpack.Decoder(Annotated[list[Control], msgspec.Meta(min_length=1, max_length=CONTROLS_MAX)])

# Returns the messages of a CONTROLS frame, in their order. Raises Unreadable likewise, for all if one is malformed.
decode_controls: Callable[[Payload], list[Control]] = strictly(_array_decoder.decode, "CONTROLS")


def join_controls(payloads: Sequence[bytes]) -> bytes:
    """Return the payload of a CONTROLS frame from those of CONTROL frames, or of a frame of records."""
    assert len(payloads) <= CONTROLS_MAX, f"{len(payloads)} messages in one frame"
    return _ARRAY.pack(_ARRAY_16, len(payloads)) + b"".join(payloads)


def count_of_controls(payload: Payload) -> int:
    """Return the number of messages or records of a frame, undecoded: the maximum if its count is implausible."""
    if len(payload) < _ARRAY.size:
        return CONTROLS_MAX
    form, count = _ARRAY.unpack_from(payload)
    return min(count, CONTROLS_MAX) if form == _ARRAY_16 else CONTROLS_MAX
