"""Control messages of orders: operators' requests to single nodes, which a router forwards over their links.

The router has authorized the operator by its certificate and names it; the node checks the role again
(``access/operators/orders.py``), and answers with the same number.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from wire.decoding import strictly
from wire.messages.message import ControlMessage
from wire.messages.queries import TRACE_EVENTS_MAX, TRACE_PAYLOAD_MAX, TRACE_S_MAX, Pattern, TraceName
from wire.messages.ranges import U64, Actor, Detail, UserText, Verb, Word

__all__ = [
    "KICK_REASONS",
    "SENT_BYTES_MAX",
    "SENT_TOPICS_MAX",
    "DrainOrder",
    "KickOrder",
    "NodeOrdered",
    "OrderNode",
    "SendOrder",
    "TraceOrder",
    "read_kick",
    "read_sent",
    "read_trace",
]

LINES_MAX = 256  # of a reply; a reload has at most 201
SENT_TOPICS_MAX = 128  # of one order
SENT_BYTES_MAX = 32 * 1024  # topics and payload of one order: JSON and base64 make more of them
KICK_REASONS: dict[str, int] = {  # reason codes of a DISCONNECT that an operator may choose, by name
    "unspecified": 0x80,
    "not_authorized": 0x87,
    "server_busy": 0x89,
    "session_taken_over": 0x8E,
    "message_rate_too_high": 0x96,
    "quota_exceeded": 0x97,
    "administrative_action": 0x98,
    "use_another_server": 0x9C,
}

Line = Annotated[str, Meta(max_length=512)]


class OrderNode(ControlMessage, tag="OrderNode"):
    """Router to a node: a verb and its subject.

    ``reload``; to an edge ``client kick`` by a KickOrder, ``client drain`` by a DrainOrder, ``msg send`` and ``retained
    clear`` by a SendOrder, ``listener pause`` and ``listener resume`` by its name; to edges and storage nodes ``trace
    start`` and ``trace stop`` by a TraceOrder; to the primary of a client ID ``session delete``, ``session expire``,
    ``queue purge``. ``actor`` and ``role``: the authorized operator; an order without a role is refused.
    """

    request: U64
    verb: Verb
    subject: UserText = ""
    dry_run: bool = False
    actor: Actor = ""
    role: Word = ""


class DrainOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of disconnecting an edge's clients, as JSON in an order's ``subject``; rate 0: the edge's setting."""

    rate: Annotated[int, Meta(ge=0, le=100_000)] = 0
    redirect: bool = False


class KickOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """The client to disconnect, and the reason code of MQTT 5, as JSON in an order's ``subject``."""

    client_id: UserText
    reason_code: Annotated[int, Meta(ge=0x80, le=0xFF)] = KICK_REASONS["administrative_action"]


class SendOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """A message that an edge publishes to each topic, as JSON in an order's ``subject``; ``payload`` in base64."""

    topics: Annotated[list[UserText], Meta(min_length=1, max_length=SENT_TOPICS_MAX)]
    payload: Annotated[bytes, Meta(max_length=SENT_BYTES_MAX)] = b""
    qos: Annotated[int, Meta(ge=0, le=2)] = 1
    retain: bool = False
    expiry_s: Annotated[int, Meta(ge=-1, lt=1 << 32)] = -1  # -1: none


class TraceOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """A trace to start, as JSON in an order's ``subject``; a trace to stop needs only its name."""

    trace: TraceName
    kind: str = ""  # of StartTrace, as all below
    pattern: Pattern = ""
    for_s: Annotated[int, Meta(ge=1, le=TRACE_S_MAX)] = 600
    events_max: Annotated[int, Meta(ge=1, le=TRACE_EVENTS_MAX)] = 10_000
    payload_bytes: Annotated[int, Meta(ge=0, le=TRACE_PAYLOAD_MAX)] = 0
    everywhere: bool = False  # at all edges and storage nodes, including those that start later


read_kick = strictly(msgspec.json.Decoder(KickOrder).decode, "order to kick")
read_sent = strictly(msgspec.json.Decoder(SendOrder).decode, "order of messages")
read_trace = strictly(msgspec.json.Decoder(TraceOrder).decode, "order of a trace")


class NodeOrdered(ControlMessage, tag="NodeOrdered"):
    """The reply: ``count`` of ended items, or the lines of a reload; ``error`` is "" on success."""

    request: U64
    count: U64 = 0
    lines: Annotated[list[Line], Meta(max_length=LINES_MAX)] = []
    error: Detail = ""
