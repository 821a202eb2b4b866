"""Dispatch of client packets that the loop does not handle, by the phase of the connection.

An MqttError of a handler ends the connection with its reason code. The loop handles PUBLISH and its acknowledgements.
"""

from edge.clients.client import Client
from edge.clients.clients import Clients
from edge.clients.connect import Connecting
from edge.clients.disconnecting import Disconnecting
from edge.clients.phase import ClientPhase
from edge.login.logins import ClientLogins
from edge.loop.state import LoopConnection
from edge.node.node import EdgeNode
from edge.subscriptions.subscribe import SubscribeHandler
from mqtt.errors import MqttError
from mqtt.reasons import ReasonCode

__all__ = ["ClientPackets"]


class ClientPackets:
    """Passes packets to the handlers of one edge.

    Args:
        node: This edge.
        clients: Closes connections after errors.
        connecting: Handles CONNECT.
        logins: Handles AUTH.
        subscribing: Handles SUBSCRIBE and UNSUBSCRIBE.
        leaving: Handles DISCONNECT.
    """

    def __init__(
        self,
        node: EdgeNode,
        clients: Clients,
        connecting: Connecting,
        logins: ClientLogins,
        subscribing: SubscribeHandler,
        leaving: Disconnecting,
    ) -> None:
        self._node = node
        self._clients = clients
        self._connecting = connecting
        self._logins = logins
        self._subscribing = subscribing
        self._leaving = leaving

    def take(self, conn: LoopConnection, first_byte: int, body: bytes) -> None:
        """Handle a packet that the loop does not handle."""
        client = conn.context
        assert isinstance(client, Client)
        kind = first_byte >> 4
        if client.phase == ClientPhase.NEW or (kind == 14 and client.is_plain):
            self._node.wake_lightly()  # these handlers wake the others if more than a claim follows
        else:
            self._node.wake()
        if client.version == 3 and kind in (8, 10):
            first_byte &= 0xF7  # MQTT 3.1 sets DUP on a repeated SUBSCRIBE or UNSUBSCRIBE
        try:
            if client.phase == ClientPhase.NEW:
                self._connecting.connect(client, first_byte, body)
            elif client.phase == ClientPhase.AUTHENTICATING and kind == 15:
                self._logins.handle_auth(client, first_byte, body)
            elif client.phase != ClientPhase.OPEN:
                self._clients.error(conn, ReasonCode.PROTOCOL_ERROR)
            elif kind == 8:
                self._subscribing.subscribe(client, first_byte, body)
            elif kind == 10:
                self._subscribing.unsubscribe(client, first_byte, body)
            elif kind == 14:
                self._leaving.disconnect(client, first_byte, body)
            elif kind == 15 and client.version == 5:
                self._logins.handle_auth(client, first_byte, body)
            else:  # a second CONNECT [MQTT-3.1.0-2], or a packet that only servers send
                self._clients.error(conn, ReasonCode.PROTOCOL_ERROR)
        except MqttError as error:
            self._clients.error(conn, error.reason_code)
