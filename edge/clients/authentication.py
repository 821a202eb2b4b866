"""Enhanced authentication: the AUTH exchange of MQTT 5, with the methods that this edge knows.

The authenticator runs a ``Method``'s exchange before CONNACK and again when the client re-authenticates, and returns
what happened; its caller answers the client. Source: MQTT 5.0 section 4.12.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edge.clients.auth_method import Method
from edge.clients.client import Authentication, Client
from edge.clients.phase import Phase
from edge.node.limits import EdgeLimits
from mqtt import property_values
from mqtt.codec import Limits, decode_packet
from mqtt.errors import RemoteProtocolError
from mqtt.packets import Auth, Connect
from mqtt.reasons import ReasonCode

__all__ = ["Accepted", "Authenticator", "Challenge", "Refused"]


@dataclass(frozen=True, slots=True)
class Challenge:
    """The exchange goes on: the client has to answer this data."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Accepted:
    """The client proved who it is; the data is for its CONNACK, or for the AUTH that ends a re-authentication."""

    identity: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Refused:
    """The client did not prove who it is, or names a method that this edge does not know."""

    reason_code: int


class Authenticator:
    """Runs the exchanges of one edge."""

    def __init__(self, limits: EdgeLimits, methods: Sequence[Method] = ()) -> None:
        self._methods = {method.name: method for method in methods}
        self._limits = Limits(user_properties_bytes_max=limits.user_property_bytes_max, from_client=True)

    def begin(self, client: Client, packet: Connect) -> Challenge | Accepted | Refused:
        """Start the exchange of a CONNECT that names a method; it comes before CONNACK."""
        name = property_values.authentication_method(packet.properties) or ""
        method = self._methods.get(name)
        if method is None:  # [MQTT-4.12.0-1]
            return Refused(ReasonCode.BAD_AUTHENTICATION_METHOD)
        client.authentication = Authentication(name, method.begin())
        return self._step(client, client.authentication, packet.properties)

    def step(self, client: Client, first_byte: int, body: bytes) -> Challenge | Accepted | Refused:
        """Take an AUTH packet: the next step, or the start of a re-authentication.

        Raises:
            MqttError: The packet is malformed or out of turn.
        """
        packet = decode_packet(first_byte, body, 5, self._limits)
        assert isinstance(packet, Auth)
        running = client.authentication
        if running is None:  # [MQTT-4.12.1-1]
            raise RemoteProtocolError("AUTH without an Authentication Method in CONNECT [MQTT-4.12.0-6]")
        if property_values.authentication_method(packet.properties) != running.method:
            raise RemoteProtocolError("AUTH names another Authentication Method [MQTT-4.12.0-5]")
        if packet.reason_code == ReasonCode.RE_AUTHENTICATE and client.phase == Phase.OPEN:
            running.exchange = self._methods[running.method].begin()
        elif packet.reason_code != ReasonCode.CONTINUE_AUTHENTICATION or running.exchange is None:
            raise RemoteProtocolError("AUTH out of turn [MQTT-4.12.0-3]")
        return self._step(client, running, packet.properties)

    def _step(
        self, client: Client, running: Authentication, properties: Mapping[int, object]
    ) -> Challenge | Accepted | Refused:
        assert running.exchange is not None
        step = running.exchange.receive(property_values.authentication_data(properties))
        if step.refused or (client.phase == Phase.OPEN and step.identity not in ("", client.identity)):
            return Refused(ReasonCode.NOT_AUTHORIZED)  # [MQTT-4.12.1-2]
        if not step.identity:
            return Challenge(step.data)
        running.exchange = None
        return Accepted(step.identity, step.data)
