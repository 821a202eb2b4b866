"""Typed values of a decoded packet's properties: each function returns the value, or the default of the specification.

``decode_properties`` has checked types and ranges, so a value of another type is a fault of the caller: an assertion.
The values for absence are those of the specification (section 3.1.2.11 for CONNECT).
"""

from collections.abc import Mapping, Sequence

from mqtt.properties import PropertyId

__all__ = [
    "authentication_data",
    "authentication_method",
    "maximum_packet_size",
    "receive_maximum",
    "server_keep_alive",
    "session_expiry_interval",
    "subscription_identifier",
    "topic_alias_maximum",
    "user_properties",
    "wants_problem_information",
    "wants_response_information",
]

_RECEIVE_MAXIMUM_ABSENT = 65_535


def session_expiry_interval(properties: Mapping[int, object]) -> int | None:
    """Return the seconds that a session outlives its connection; None if the packet has no value."""
    value = properties.get(PropertyId.SESSION_EXPIRY_INTERVAL)
    assert value is None or isinstance(value, int)
    return value


def receive_maximum(properties: Mapping[int, object]) -> int:
    """Return the number of unacknowledged QoS 1 and 2 messages that the sender accepts."""
    return _number(properties, PropertyId.RECEIVE_MAXIMUM, _RECEIVE_MAXIMUM_ABSENT)


def maximum_packet_size(properties: Mapping[int, object]) -> int:
    """Return the largest packet that the sender accepts, in bytes; 0 is no bound."""
    return _number(properties, PropertyId.MAXIMUM_PACKET_SIZE, 0)


def server_keep_alive(properties: Mapping[int, object]) -> int:
    """Return the Keep Alive by which a CONNACK replaces the client's, in seconds; 0 is none."""
    return _number(properties, PropertyId.SERVER_KEEP_ALIVE, 0)


def topic_alias_maximum(properties: Mapping[int, object]) -> int:
    """Return the highest topic alias that the sender accepts; 0 is none."""
    return _number(properties, PropertyId.TOPIC_ALIAS_MAXIMUM, 0)


def wants_response_information(properties: Mapping[int, object]) -> bool:
    """Return whether the client requested Response Information in CONNACK."""
    return _number(properties, PropertyId.REQUEST_RESPONSE_INFORMATION, 0) == 1


def wants_problem_information(properties: Mapping[int, object]) -> bool:
    """Return whether the client accepts reason strings and user properties outside CONNACK, DISCONNECT and PUBLISH."""
    return _number(properties, PropertyId.REQUEST_PROBLEM_INFORMATION, 1) == 1


def user_properties(properties: Mapping[int, object]) -> Sequence[tuple[str, str]]:
    """Return the pairs of name and value, in their order."""
    value = properties.get(PropertyId.USER_PROPERTY, ())
    assert isinstance(value, list | tuple)
    return value


def authentication_method(properties: Mapping[int, object]) -> str | None:
    """Return the authentication method of the packet; None if it has none."""
    value = properties.get(PropertyId.AUTHENTICATION_METHOD)
    assert value is None or isinstance(value, str)
    return value


def authentication_data(properties: Mapping[int, object]) -> bytes:
    """Return the data of the exchange; empty if there are none."""
    value = properties.get(PropertyId.AUTHENTICATION_DATA, b"")
    assert isinstance(value, bytes)
    return value


def subscription_identifier(properties: Mapping[int, object]) -> int:
    """Return the identifier of a SUBSCRIBE, which has at most one; 0 is none."""
    value = properties.get(PropertyId.SUBSCRIPTION_IDENTIFIER)
    if value is None:
        return 0
    assert isinstance(value, list)
    return int(value[0])


def _number(properties: Mapping[int, object], identifier: PropertyId, absent: int) -> int:
    value = properties.get(identifier, absent)
    assert isinstance(value, int)
    return value
