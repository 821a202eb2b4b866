"""Enhanced authentication: the AUTH exchange of MQTT 5, with the methods that this edge knows.

A method is a ``Method``; the desk runs its exchange before CONNACK and again when the client re-authenticates.
Source: MQTT 5.0 section 4.12.
"""

from typing import TYPE_CHECKING, Protocol

from edge.client import Client, Phase
from mqtt.codec import Limits, decode_packet, encode_packet
from mqtt.errors import RemoteProtocolError
from mqtt.packets import Auth, Connect
from mqtt.properties import PropertyId
from mqtt.reasons import ReasonCode

if TYPE_CHECKING:
    from edge.core import EdgeCore

__all__ = ["AuthenticationDesk", "Exchange", "Method", "Step"]


class Step(Protocol):
    """What a method answers: go on with data, accept with data and an identity, or refuse."""

    data: bytes
    identity: str  # "" while the exchange goes on
    refused: bool


class Exchange(Protocol):
    """One exchange with one client."""

    def receive(self, data: bytes) -> Step:
        """Take the client's data and answer."""


class Method(Protocol):
    """An authentication method by its name."""

    name: str

    def begin(self) -> Exchange:
        """Start an exchange."""


class _Running:
    __slots__ = ("exchange", "final", "method")

    def __init__(self, method: str, exchange: Exchange) -> None:
        self.method = method
        self.exchange = exchange
        self.final = b""


class AuthenticationDesk:
    """Runs the exchanges of one edge."""

    def __init__(self, edge: "EdgeCore", methods: tuple[Method, ...] = ()) -> None:
        self._edge = edge
        self._methods = {method.name: method for method in methods}
        self._limits = Limits(user_properties_bytes_max=edge.limits.user_property_bytes_max, from_client=True)

    def begin(self, client: Client, packet: Connect) -> None:
        """CONNECT named a method: the exchange comes before CONNACK."""
        name = str(packet.properties[PropertyId.AUTHENTICATION_METHOD])
        method = self._methods.get(name)
        if method is None:
            self._edge.connecting.refuse(client, ReasonCode.BAD_AUTHENTICATION_METHOD)
            return
        client.phase = Phase.AUTHENTICATING
        client.authentication = _Running(name, method.begin())
        data = packet.properties.get(PropertyId.AUTHENTICATION_DATA, b"")
        self._go_on(client, bytes(data))  # type: ignore[call-overload]

    def auth(self, client: Client, first_byte: int, body: bytes) -> None:
        """An AUTH packet: the next step, or the start of a re-authentication."""
        packet = decode_packet(first_byte, body, 5, self._limits)
        assert isinstance(packet, Auth)
        running = client.authentication
        if client.version != 5 or not isinstance(running, _Running):
            raise RemoteProtocolError("AUTH without an Authentication Method in CONNECT")
        method = packet.properties.get(PropertyId.AUTHENTICATION_METHOD)
        if method != running.method:  # [MQTT-4.12.0-5]
            raise RemoteProtocolError("AUTH names another Authentication Method")
        if packet.reason_code == ReasonCode.RE_AUTHENTICATE and client.phase == Phase.OPEN:
            running.exchange = self._methods[running.method].begin()
        elif packet.reason_code != ReasonCode.CONTINUE_AUTHENTICATION:
            raise RemoteProtocolError("AUTH out of turn")
        data = packet.properties.get(PropertyId.AUTHENTICATION_DATA, b"")
        self._go_on(client, bytes(data))  # type: ignore[call-overload]

    def _go_on(self, client: Client, data: bytes) -> None:
        running = client.authentication
        assert isinstance(running, _Running)
        step = running.exchange.receive(data)
        if step.refused:
            if client.phase == Phase.OPEN:
                self._edge.disconnect(client, ReasonCode.NOT_AUTHORIZED)
            else:
                self._edge.connecting.refuse(client, ReasonCode.NOT_AUTHORIZED)
            return
        if step.identity and client.phase != Phase.OPEN:
            client.identity = step.identity
            running.final = step.data
            self._edge.connecting.open(client)
            return
        code = ReasonCode.SUCCESS if step.identity else ReasonCode.CONTINUE_AUTHENTICATION
        properties: dict[int, object] = {PropertyId.AUTHENTICATION_METHOD: running.method}
        if step.data:
            properties[PropertyId.AUTHENTICATION_DATA] = step.data
        self._edge.hot.write(client.conn, encode_packet(Auth(code, properties), 5))
        self._edge.hot.resume(client.conn)

    def connack_properties(self, client: Client) -> dict[int, object]:
        """Return what CONNACK says about the exchange [MQTT-4.12.0-4]."""
        running = client.authentication
        if not isinstance(running, _Running):
            return {}
        properties: dict[int, object] = {PropertyId.AUTHENTICATION_METHOD: running.method}
        if running.final:
            properties[PropertyId.AUTHENTICATION_DATA] = running.final
        return properties
