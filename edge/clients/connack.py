"""The properties of CONNACK: this edge's limits where they differ from the client's request.

Source: MQTT 5.0 section 3.2.2.3.
"""

from edge.clients.client import Client
from edge.node.node import EdgeNode
from edge.rights.bounds import Bounds
from mqtt import property_values
from mqtt.codec import encode_packet
from mqtt.packets import Connack, Connect
from mqtt.properties import PropertyId
from mqtt.publisher_properties import ASKS, VOUCHED_FILTER
from mqtt.reasons import ReasonCode

__all__ = ["ConnackBuilder"]

CACHED_MAX = 64  # cached CONNACKs
PACKET_BYTES_MAX = 268_435_460  # of the protocol (section 2.1.4), not a setting


class ConnackBuilder:
    """Encodes successful CONNACKs with this edge's limits."""

    def __init__(self, node: EdgeNode) -> None:
        self._node = node
        # (version, Session Present, announced limits) -> a CONNACK without client-specific properties
        self._cached: dict[tuple[int, bool, int, int], bytes] = {}

    def keep_alive(self, bounds: Bounds, packet: Connect) -> tuple[int, int | None]:
        """Return the effective keep alive, and the Server Keep Alive to announce or None [MQTT-3.2.2-21]."""
        cap = bounds.keep_alive_max_s
        if 0 < packet.keep_alive_s <= cap:
            return packet.keep_alive_s, None
        return cap, cap if packet.protocol_version == 5 else None

    def fits(self, client: Client, packet: Connect) -> bool:
        """Return False if our CONNACK, with all its mandatory properties, is too large for the client [MQTT-3.1.2-24].

        The client's session expiry must be decided before.
        """
        if not packet.properties:
            return True
        limit = property_values.maximum_packet_size(packet.properties)
        if not limit:
            return True
        announced = self._announcements(client, packet, self.keep_alive(client.known_bounds, packet)[1])
        return len(encode_packet(Connack(False, ReasonCode.SUCCESS, announced), 5)) <= limit

    def encoded(self, client: Client, packet: Connect, session_present: bool, keep_alive_s: int | None) -> bytes:
        """Return the CONNACK of an open session, b"" if it exceeds the client's maximum packet size [MQTT-3.1.2-24].

        Args:
            client: With an open session.
            packet: Its CONNECT.
            session_present: As the partition reported it.
            keep_alive_s: Server Keep Alive to announce, None for none.
        """
        cacheable = client.version < 5 or not (
            packet.properties
            or client.expiry_s
            or keep_alive_s is not None
            or client.authentication is not None
            or not packet.client_id
        )
        bounds = client.known_bounds
        key = (client.version, session_present, bounds.inflight_max, bounds.packet_bytes_max)
        data = self._cached.get(key) if cacheable else None
        if data is None:
            announced = self._announcements(client, packet, keep_alive_s)
            data = encode_packet(Connack(session_present, ReasonCode.SUCCESS, announced), client.version)
            if cacheable and len(self._cached) < CACHED_MAX:
                self._cached[key] = data
        limit = 0
        if packet.properties:
            limit = property_values.maximum_packet_size(packet.properties)
        return data if not limit or len(data) <= limit else b""

    def _announcements(self, client: Client, packet: Connect, keep_alive_s: int | None) -> dict[int, object]:
        if client.version < 5:
            return {}
        limits, bounds = self._node.limits, client.known_bounds
        properties: dict[int, object] = {
            PropertyId.TOPIC_ALIAS_MAXIMUM: limits.topic_alias_maximum,
            PropertyId.RECEIVE_MAXIMUM: bounds.inflight(limits.receive_maximum),
        }
        asked = limits.announce_maximum_packet_size or PropertyId.MAXIMUM_PACKET_SIZE in packet.properties
        asked = asked or bounds.packet_bytes_max < limits.maximum_packet_size
        if asked and bounds.packet_bytes_max < PACKET_BYTES_MAX:
            # Without the property a client learns of the limit by DISCONNECT 0x95 (section 3.2.2.3.6).
            properties[PropertyId.MAXIMUM_PACKET_SIZE] = bounds.packet_bytes_max
        wanted = limits.response_information and property_values.wants_response_information(packet.properties)
        if wanted and not set(client.client_id) & set("+#/"):  # it becomes one level of a topic name
            properties[PropertyId.RESPONSE_INFORMATION] = limits.response_information + client.client_id
        if limits.maximum_qos < 2:
            properties[PropertyId.MAXIMUM_QOS] = limits.maximum_qos
        if not limits.retain_available:
            properties[PropertyId.RETAIN_AVAILABLE] = 0
        if not packet.client_id:
            properties[PropertyId.ASSIGNED_CLIENT_IDENTIFIER] = client.client_id  # [MQTT-3.2.2-16]
        if keep_alive_s is not None:
            properties[PropertyId.SERVER_KEEP_ALIVE] = keep_alive_s
        if client.expiry_s != (property_values.session_expiry_interval(packet.properties) or 0):
            properties[PropertyId.SESSION_EXPIRY_INTERVAL] = client.expiry_s
        if client.authentication is not None:
            properties.update(client.authentication.connack_properties())
        if limits.publisher_properties and ASKS in property_values.user_properties(packet.properties):
            named: dict[int, object] = {
                PropertyId.USER_PROPERTY: [(VOUCHED_FILTER, each) for each in limits.publisher_properties]
            }
            limit = property_values.maximum_packet_size(packet.properties)
            if not limit or len(encode_packet(Connack(True, ReasonCode.SUCCESS, properties | named), 5)) <= limit:
                properties.update(named)  # [MQTT-3.2.2-20]
        return properties
