"""Enhanced authentication: the AUTH exchange of MQTT 5, with the methods that this edge knows.

A method is a ``Method``; the desk runs its exchange before CONNACK and again when the client re-authenticates.
Source: MQTT 5.0 section 4.12.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from edge.client import Client, Phase
from mqtt.codec import Limits, decode_packet, encode_packet
from mqtt.errors import RemoteProtocolError
from mqtt.packets import Auth, Connect
from mqtt.properties import PropertyId
from mqtt.reasons import ReasonCode

if TYPE_CHECKING:
    from edge.core import EdgeCore

__all__ = ["Authentication", "AuthenticationDesk", "Exchange", "Method", "Step"]


class Step(Protocol):
    """An answer of a method: go on with data, accept with data and an identity, or refuse."""

    @property
    def data(self) -> bytes:
        """For the client."""

    @property
    def identity(self) -> str:
        """Identity that the client proved; "" while the exchange goes on."""

    @property
    def refused(self) -> bool:
        """The exchange is over, without success."""


class Exchange(Protocol):
    """One exchange with one client."""

    def receive(self, data: bytes) -> Step:
        """Take the client's data and answer."""


class Method(Protocol):
    """An authentication method by its name."""

    @property
    def name(self) -> str:
        """As CONNECT and AUTH say it."""

    def begin(self) -> Exchange:
        """Start an exchange."""


class Authentication:
    """``Client.authentication``: the method that CONNECT chose, and the exchange under way."""

    __slots__ = ("exchange", "final", "method")

    def __init__(self, method: str, exchange: Exchange) -> None:
        self.method = method
        self.exchange: Exchange | None = exchange  # None between exchanges
        self.final = b""  # data of the step that accepted, for CONNACK


class AuthenticationDesk:
    """Runs the exchanges of one edge."""

    def __init__(self, edge: "EdgeCore", methods: Sequence[Method] = ()) -> None:
        self._edge = edge
        self._methods = {method.name: method for method in methods}
        self._limits = Limits(user_properties_bytes_max=edge.limits.user_property_bytes_max, from_client=True)

    def begin(self, client: Client, packet: Connect) -> None:
        """CONNECT named a method: the exchange comes before CONNACK."""
        name = str(packet.properties[PropertyId.AUTHENTICATION_METHOD])
        method = self._methods.get(name)
        if method is None:  # [MQTT-4.12.0-1]
            self._edge.connecting.refuse(client, ReasonCode.BAD_AUTHENTICATION_METHOD)
            return
        client.phase = Phase.AUTHENTICATING
        client.authentication = Authentication(name, method.begin())
        self._go_on(client, client.authentication, packet.properties)

    def auth(self, client: Client, first_byte: int, body: bytes) -> None:
        """An AUTH packet: the next step, or the start of a re-authentication."""
        packet = decode_packet(first_byte, body, 5, self._limits)
        assert isinstance(packet, Auth)
        running = client.authentication
        if running is None:  # [MQTT-4.12.1-1]
            raise RemoteProtocolError("AUTH without an Authentication Method in CONNECT [MQTT-4.12.0-6]")
        if packet.properties.get(PropertyId.AUTHENTICATION_METHOD) != running.method:
            raise RemoteProtocolError("AUTH names another Authentication Method [MQTT-4.12.0-5]")
        if packet.reason_code == ReasonCode.RE_AUTHENTICATE and client.phase == Phase.OPEN:
            running.exchange = self._methods[running.method].begin()
        elif packet.reason_code != ReasonCode.CONTINUE_AUTHENTICATION or running.exchange is None:
            raise RemoteProtocolError("AUTH out of turn [MQTT-4.12.0-3]")
        self._go_on(client, running, packet.properties)

    def _go_on(self, client: Client, running: Authentication, properties: Mapping[int, object]) -> None:
        assert running.exchange is not None
        data = properties.get(PropertyId.AUTHENTICATION_DATA, b"")
        step = running.exchange.receive(bytes(data))  # type: ignore[call-overload]
        opened = client.phase == Phase.OPEN
        if step.refused or (opened and step.identity not in ("", client.identity)):
            if opened:  # [MQTT-4.12.1-2]
                self._edge.disconnect(client, ReasonCode.NOT_AUTHORIZED)
            else:
                self._edge.connecting.refuse(client, ReasonCode.NOT_AUTHORIZED)
            return
        if step.identity:
            running.exchange = None
        if step.identity and not opened:
            client.identity = step.identity
            running.final = step.data
            self._edge.connecting.open(client)
            return
        code = ReasonCode.SUCCESS if step.identity else ReasonCode.CONTINUE_AUTHENTICATION
        answer: dict[int, object] = {PropertyId.AUTHENTICATION_METHOD: running.method}
        if step.data:
            answer[PropertyId.AUTHENTICATION_DATA] = step.data
        self._edge.hot.write(client.conn, encode_packet(Auth(code, answer), 5))
        self._edge.hot.resume(client.conn)

    def connack_properties(self, client: Client) -> dict[int, object]:
        """Return what CONNACK says about the exchange [MQTT-4.12.0-4]."""
        running = client.authentication
        if running is None:
            return {}
        properties: dict[int, object] = {PropertyId.AUTHENTICATION_METHOD: running.method}
        if running.final:
            properties[PropertyId.AUTHENTICATION_DATA] = running.final
        return properties
