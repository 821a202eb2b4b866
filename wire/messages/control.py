"""Union of the control messages, and its codec."""

from collections.abc import Callable

import msgspec

from wire.decoding import Payload, strictly
from wire.messages.nodes import (
    Changed,
    Drain,
    FollowMap,
    Heartbeat,
    HeartbeatReply,
    Leave,
    MapPage,
    MapStep,
    Moved,
    Refused,
    Register,
    Registered,
    Relay,
    Relayed,
    RequestChange,
)
from wire.messages.operators import Admin, AdminReply
from wire.messages.orders import NodeOrdered, OrderNode
from wire.messages.policy import (
    AskUsers,
    FollowPolicy,
    PolicyPaged,
    PolicyStepped,
    Users,
)
from wire.messages.redispatch import RedispatchAnswer, RedispatchOrder
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
from wire.messages.sessions import (
    Claims,
    CloseSession,
    InboundRecorded,
    InboundReleased,
    KickSession,
    OpenSession,
    PollClaims,
    RecordInbound,
    ReleaseInbound,
    SessionClosed,
    SessionKicked,
    SessionOpened,
    SessionSubscribed,
    SessionUnsubscribed,
    SubscribeSession,
    UnsubscribeSession,
)
from wire.messages.wills import FireWill, WillFired

__all__ = ["Control", "decode_control", "encode_control"]


Control = (
    Register
    | Registered
    | Refused
    | Heartbeat
    | HeartbeatReply
    | FollowMap
    | MapPage
    | MapStep
    | RequestChange
    | Drain
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
    | OpenSession
    | SessionOpened
    | CloseSession
    | SessionClosed
    | KickSession
    | SessionKicked
    | Relay
    | Relayed
    | SubscribeSession
    | SessionSubscribed
    | UnsubscribeSession
    | SessionUnsubscribed
    | RecordInbound
    | InboundRecorded
    | ReleaseInbound
    | InboundReleased
    | ReadRetained
    | ReadRetainedAll
    | RetainedPage
    | RetainedNone
    | DeliverRetained
    | RetainedDelivered
    | PollClaims
    | Claims
    | FireWill
    | WillFired
    | RedispatchOrder
    | RedispatchAnswer
    | Admin
    | AdminReply
    | FollowPolicy
    | PolicyPaged
    | PolicyStepped
    | AskUsers
    | Users
    | OrderNode
    | NodeOrdered
)


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Control] = msgspec.msgpack.Decoder(Control)

# Returns the payload of a CONTROL frame.
encode_control: Callable[[Control], bytes] = _encoder.encode

# Returns the message of a CONTROL frame. Raises Unreadable: the payload is not one of the messages (an unknown tag
# included), or a value is out of its range.
decode_control: Callable[[Payload], Control] = strictly(_decoder.decode, "CONTROL")
