"""Hypothesis strategies for valid packets, shared by the tests of the codec and the fuzz target's corpus."""

from functools import cache
from typing import Any

from hypothesis import strategies as st

from mqtt import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    Pingreq,
    Pingresp,
    PropertyId,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from mqtt.properties import WILL_PROPERTIES
from mqtt.reasons import ALLOWED_REASON_CODES
from tests.mqtt.property_table import PLACES, TABLE

TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc", "Cn"]), max_size=12)
IDENTIFIER = st.integers(1, 65_535)
QOS = st.integers(0, 2)
LEVEL = st.one_of(
    st.sampled_from(["", "a", "b", "$x"]), TEXT.map(lambda t: t.replace("/", "").translate({35: "", 43: ""}))
)
TOPIC = st.lists(LEVEL, min_size=1, max_size=4).map("/".join).filter(bool)


@st.composite
def topic_filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(st.one_of(LEVEL, st.just("+")), min_size=0, max_size=4))
    if draw(st.booleans()) or not levels:
        levels.append("#")
    text = "/".join(levels)
    return text if text and not text.startswith("$share/") else "#"


_U16, _U32, _FLAG = st.integers(0, 0xFFFF), st.integers(0, 0xFFFF_FFFF), st.integers(0, 1)
_BINARY = st.binary(max_size=12)
_VALUES: dict[PropertyId, st.SearchStrategy[Any]] = {
    PropertyId.PAYLOAD_FORMAT_INDICATOR: _FLAG,
    PropertyId.MESSAGE_EXPIRY_INTERVAL: _U32,
    PropertyId.CONTENT_TYPE: TEXT,
    PropertyId.RESPONSE_TOPIC: TOPIC,
    PropertyId.CORRELATION_DATA: _BINARY,
    PropertyId.SUBSCRIPTION_IDENTIFIER: st.integers(1, 268_435_455).map(lambda i: [i]),
    PropertyId.SESSION_EXPIRY_INTERVAL: _U32,
    PropertyId.ASSIGNED_CLIENT_IDENTIFIER: TEXT,
    PropertyId.SERVER_KEEP_ALIVE: _U16,
    PropertyId.AUTHENTICATION_METHOD: TEXT,
    PropertyId.AUTHENTICATION_DATA: _BINARY,
    PropertyId.REQUEST_PROBLEM_INFORMATION: _FLAG,
    PropertyId.WILL_DELAY_INTERVAL: _U32,
    PropertyId.REQUEST_RESPONSE_INFORMATION: _FLAG,
    PropertyId.RESPONSE_INFORMATION: TEXT,
    PropertyId.SERVER_REFERENCE: TEXT,
    PropertyId.REASON_STRING: TEXT,
    PropertyId.RECEIVE_MAXIMUM: IDENTIFIER,
    PropertyId.TOPIC_ALIAS_MAXIMUM: _U16,
    PropertyId.TOPIC_ALIAS: IDENTIFIER,
    PropertyId.MAXIMUM_QOS: _FLAG,
    PropertyId.RETAIN_AVAILABLE: _FLAG,
    PropertyId.USER_PROPERTY: st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=3),
    PropertyId.MAXIMUM_PACKET_SIZE: st.integers(1, 0xFFFF_FFFF),
    PropertyId.WILDCARD_SUBSCRIPTION_AVAILABLE: _FLAG,
    PropertyId.SUBSCRIPTION_IDENTIFIER_AVAILABLE: _FLAG,
    PropertyId.SHARED_SUBSCRIPTION_AVAILABLE: _FLAG,
}


@cache
def properties(packet_type: int, version: int = 5) -> st.SearchStrategy[dict[int, Any]]:
    if version != 5:
        return st.builds(dict)
    here = {identifier for identifier, _, names in TABLE if packet_type in {PLACES[name] for name in names.split()}}
    allowed = {int(key): value for key, value in _VALUES.items() if key in here}
    required = {}
    if packet_type == PacketType.AUTH:
        required = {int(PropertyId.AUTHENTICATION_METHOD): allowed.pop(PropertyId.AUTHENTICATION_METHOD)}
    elif PropertyId.AUTHENTICATION_DATA in allowed:  # only with a method; the golden packets test that
        del allowed[PropertyId.AUTHENTICATION_DATA]
    return st.fixed_dictionaries(required, optional=allowed)


@st.composite
def wills(draw: st.DrawFn, version: int) -> Will:
    return Will(draw(TOPIC), draw(_BINARY), draw(QOS), draw(st.booleans()), draw(properties(WILL_PROPERTIES, version)))


@st.composite
def connects(draw: st.DrawFn, version: int) -> Connect:
    username = draw(st.none() | TEXT)
    password = draw(st.none() | _BINARY) if version == 5 or username is not None else None
    will = draw(st.none() | wills(version))
    found = draw(properties(PacketType.CONNECT, version))
    return Connect(draw(TEXT), draw(st.booleans()), draw(_U16), version, will, username, password, found)


@st.composite
def publishes(draw: st.DrawFn, version: int) -> Publish:
    qos = draw(QOS)
    dup, identifier = (draw(st.booleans()), draw(IDENTIFIER)) if qos else (False, None)
    found = draw(properties(PacketType.PUBLISH, version))
    return Publish(draw(TOPIC), draw(st.binary(max_size=300)), qos, draw(st.booleans()), dup, identifier, found)


@st.composite
def subscribes(draw: st.DrawFn, version: int) -> Subscribe:
    flag = st.booleans() if version == 5 else st.just(False)
    handling = st.integers(0, 2) if version == 5 else st.just(0)
    request = st.builds(SubscriptionRequest, topic_filters(), QOS, flag, flag, handling)
    requests = draw(st.lists(request, min_size=1, max_size=4))
    return Subscribe(draw(IDENTIFIER), requests, draw(properties(PacketType.SUBSCRIBE, version)))


@cache
def packets(version: int) -> st.SearchStrategy[Packet]:
    """Any valid packet of a protocol version."""

    def codes(packet_type: PacketType) -> st.SearchStrategy[int]:
        return st.sampled_from(sorted(ALLOWED_REASON_CODES[packet_type])) if version == 5 else st.just(0)

    def found(packet_type: PacketType) -> st.SearchStrategy[dict[int, Any]]:
        return properties(packet_type, version)

    acknowledgements: list[st.SearchStrategy[Packet]] = [
        st.builds(kind, IDENTIFIER, codes(kind.packet_type), found(kind.packet_type))  # type: ignore[arg-type]
        for kind in (Puback, Pubrec, Pubrel, Pubcomp)
    ]
    suback = codes(PacketType.SUBACK) if version == 5 else st.sampled_from([0, 1, 2, 0x80])
    unsuback = st.lists(codes(PacketType.UNSUBACK), min_size=1, max_size=4) if version == 5 else st.just([])
    kinds: list[st.SearchStrategy[Packet]] = [
        *acknowledgements,
        connects(version),
        st.builds(Connack, st.booleans(), st.just(0), found(PacketType.CONNACK)),
        publishes(version),
        subscribes(version),
        st.builds(Suback, IDENTIFIER, st.lists(suback, min_size=1, max_size=4), found(PacketType.SUBACK)),
        st.builds(
            Unsubscribe, IDENTIFIER, st.lists(topic_filters(), min_size=1, max_size=4), found(PacketType.UNSUBSCRIBE)
        ),
        st.builds(Unsuback, IDENTIFIER, unsuback, found(PacketType.UNSUBACK)),
        st.builds(Pingreq),
        st.builds(Pingresp),
        st.builds(Disconnect, codes(PacketType.DISCONNECT), found(PacketType.DISCONNECT)),
    ]
    if version == 5:
        kinds.append(st.builds(Auth, codes(PacketType.AUTH), found(PacketType.AUTH)))
    return st.one_of(kinds)
