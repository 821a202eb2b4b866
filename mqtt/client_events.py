"""Types of a client's session: its states, bounds and timers, its events, and its durable changes.

Plain data; the logic is in ``mqtt/client_session.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, TypeAlias

from mqtt.packets import Connack, Disconnect, Publish, Suback, Unsuback

__all__ = [
    "Accepted",
    "ClientBounds",
    "ClientState",
    "ConnectRefused",
    "Event",
    "MustClose",
    "OpenPublish",
    "PublishAnswered",
    "PublishReceived",
    "RequestAnswered",
    "ServerDisconnect",
    "StateChange",
    "Timer",
]


class ClientState(Enum):
    """State of the connection; ``closed`` leads from each state to AWAY."""

    AWAY = "no connection and no attempt"  # begin -> OPENING
    OPENING = "the caller opens a stream; the connect timer runs"  # opened -> CONNECTING
    CONNECTING = "CONNECT is sent; the connect timer runs"  # CONNACK -> CONNECTED or REFUSED
    CONNECTED = "requests are accepted; the ping timer runs"  # disconnect -> LEAVING
    LEAVING = "DISCONNECT was the last packet; the goodbye timer runs"
    REFUSED = "CONNACK carried an error; no timer runs, and the caller closes"


@dataclass(frozen=True, slots=True)
class ClientBounds:
    """Bounds of one connection.

    Attributes:
        connect_timeout_s: For the stream and CONNACK together.
        goodbye_timeout_s: For the broker to close after DISCONNECT.
        silence_s: Close after this time without received bytes; a PINGREQ is sent three times as often, or more often
            if the broker's Server Keep Alive requires it.
        window: QoS 1 and 2 publishes in flight; the broker's Receive Maximum may lower it.
        excess: Tolerated messages above our own Receive Maximum: Mosquitto 2.0 sends more after a reconnect.
        heedless: Ignore the broker's Receive Maximum, as paho does after a reconnect.
    """

    connect_timeout_s: float = 3.0
    goodbye_timeout_s: float = 1.0
    silence_s: float = 3.0
    window: int = 16
    excess: int = 0
    heedless: bool = False


@dataclass(frozen=True, slots=True)
class Timer:
    """The running timer, on the caller's clock."""

    kind: Literal["connect", "ping", "goodbye"]
    due: float


@dataclass(slots=True)
class OpenPublish:
    """A QoS 1 or 2 PUBLISH with a used packet identifier."""

    token: int  # of the caller
    packet: Publish
    released: bool = False  # PUBREC was read: resends send PUBREL


@dataclass(frozen=True, slots=True)
class StateChange:
    """One change that must be durable before later packets are sent, if a session outlives its process.

    Attributes:
        kind: "sent" (PUBLISH of ``token`` uses the identifier), "released" (PUBREC received), "ended" (PUBACK, PUBCOMP
            or an error: the identifier is free), "taken" (a QoS 2 message was delivered), "finished" (PUBREL received),
            or "forgotten" (the broker has no session: all of both directions).
        identifier: The packet identifier, 0 for "forgotten".
        token: Of the publish, for the first three.
    """

    kind: Literal["sent", "released", "ended", "taken", "finished", "forgotten"]
    identifier: int = 0
    token: int = 0


@dataclass(frozen=True, slots=True)
class Accepted:
    """CONNACK accepted the connection; ``forgotten`` and ``resent`` are tokens of publishes."""

    connack: Connack
    forgotten: tuple[int, ...]  # the broker has no session: these are never answered
    resent: tuple[int, ...]  # sent with DUP after this event


@dataclass(frozen=True, slots=True)
class ConnectRefused:
    """CONNACK carried an error; MustClose follows."""

    connack: Connack


@dataclass(frozen=True, slots=True)
class PublishReceived:
    """A PUBLISH arrived. The caller stores it and then calls ``acknowledge``."""

    packet: Publish


@dataclass(frozen=True, slots=True)
class PublishAnswered:
    """PUBACK, or the first PUBREC, answered a publish; or it exceeds the packet size of a new connection's broker."""

    token: int
    reason_code: int


@dataclass(frozen=True, slots=True)
class RequestAnswered:
    """SUBACK or UNSUBACK answered a request."""

    token: int
    packet: Suback | Unsuback


@dataclass(frozen=True, slots=True)
class ServerDisconnect:
    """The broker sent DISCONNECT; it closes next."""

    packet: Disconnect


@dataclass(frozen=True, slots=True)
class MustClose:
    """The caller must close the stream and call ``closed``: this connection has no further events.

    ``reason`` is "refused" (CONNACK), "silent" (no CONNACK, or no received bytes), "protocol" (malformed bytes, or a
    packet out of place), or "local" (the broker did not close after DISCONNECT). ``detail`` is a text for logs.
    """

    reason: Literal["refused", "silent", "protocol", "local"]
    detail: str = field(default="", compare=False)


Event: TypeAlias = (
    Accepted | ConnectRefused | PublishReceived | PublishAnswered | RequestAnswered | ServerDisconnect | MustClose
)
