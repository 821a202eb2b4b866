"""Topic names and filters: syntax tables, and the reference matcher."""

import pytest

from mqtt import (
    MalformedPacket,
    ReasonCode,
    RemoteProtocolError,
    is_reserved,
    levels,
    matches,
    parse_shared,
    validate_topic_filter,
    validate_topic_name,
)

MATCHES = [  # sections 4.7.1 and 4.7.2, their examples first
    ("sport/tennis/player1/#", "sport/tennis/player1 sport/tennis/player1/ranking sport/tennis/player1/a/b", "sport"),
    ("sport/#", "sport sport/ sport/tennis", "sports spor/t"),
    ("#", "a a/b / /a a/", "$SYS $SYS/a"),
    ("sport/tennis/+", "sport/tennis/player1 sport/tennis/", "sport/tennis sport/tennis/player1/ranking"),
    ("sport/+", "sport/ sport/a", "sport sport/a/b"),
    ("+", "a $", "/ a/b /a"),
    ("+/+", "/finance a/b /", "a a/b/c $SYS/a"),
    ("/+", "/finance /", "finance /a/b"),
    ("+/tennis/#", "sport/tennis sport/tennis/a", "sport $x/tennis"),
    ("$SYS/#", "$SYS $SYS/ $SYS/a/b", "SYS/a $SYSTEM"),
    ("$SYS/monitor/+", "$SYS/monitor/Clients", "$SYS/monitor $SYS/monitor/a/b"),
    ("+/monitor/Clients", "a/monitor/Clients", "$SYS/monitor/Clients"),
    ("a/+/c", "a/b/c a//c a/$b/c", "a/b/b a/c a/b/c/d"),
    ("a//b", "a//b", "a/b a///b"),
    ("A", "A", "a A/"),
    ("a/$x", "a/$x", "a/x"),
    ("+/+/#", "a/b a/b/c /", "a $a/b"),
]


@pytest.mark.parametrize(("topic_filter", "yes", "no"), MATCHES, ids=[row[0] for row in MATCHES])
def test_matches(topic_filter: str, yes: str, no: str) -> None:
    """Sections 4.7.1 to 4.7.3, [MQTT-4.7.2-1]."""
    for topic in yes.split():
        assert matches(topic_filter, topic) == (not (topic == "$" and topic_filter == "+")), topic
    for topic in no.split():
        assert not matches(topic_filter, topic), topic


@pytest.mark.parametrize("topic", ["a", "/", "a/b", "a b", "$SYS/x", "\ufeffa", "x" * 65_535, "/" * 65_535])
def test_good_names(topic: str) -> None:
    """Any characters but the wildcards and U+0000, up to 65 535 bytes."""
    validate_topic_name(topic)
    validate_topic_filter(topic)


@pytest.mark.parametrize("topic", ["", "+", "a/+", "#", "a#", "a\0b", "x" * 65_536, "\u20ac" * 21_846])
def test_bad_names(topic: str) -> None:
    """[MQTT-4.7.3-1] [MQTT-3.3.2-2] [MQTT-4.7.3-2] [MQTT-4.7.3-3]."""
    with pytest.raises(MalformedPacket):
        validate_topic_name(topic)


@pytest.mark.parametrize("topic_filter", ["#", "+", "/#", "+/#", "a/+/b", "a/+/+/#", "+/a", "a/+"])
def test_good_filters(topic_filter: str) -> None:
    """Wildcards that are whole levels, # the last (section 4.7.1)."""
    validate_topic_filter(topic_filter)


@pytest.mark.parametrize("topic_filter", ["", "a#", "a/#/b", "#/", "##", "a/##", "a+", "+a/b", "a/b+", "++", "a\0"])
def test_bad_filters(topic_filter: str) -> None:
    """[MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-4.7.3-1] [MQTT-4.7.3-2]."""
    with pytest.raises(MalformedPacket):
        validate_topic_filter(topic_filter)


def test_validate_topic_limits_have_their_own_codes() -> None:
    """Well formed, but above the broker's limit: 0x90 for names, 0x8F for filters; the limit itself passes."""
    validate_topic_name("a/b/c", bytes_max=5, levels_max=3)
    validate_topic_filter("\u20ac/#", bytes_max=5, levels_max=2)
    for limit in ({"bytes_max": 4}, {"levels_max": 2}):
        with pytest.raises(RemoteProtocolError) as name:
            validate_topic_name("a/b/c", **limit)
        assert name.value.reason_code == ReasonCode.TOPIC_NAME_INVALID
        with pytest.raises(RemoteProtocolError) as topic_filter:
            validate_topic_filter("a/+/#", **limit)
        assert topic_filter.value.reason_code == ReasonCode.TOPIC_FILTER_INVALID


@pytest.mark.parametrize(
    ("topic_filter", "parts"),
    [
        ("a/b", None),
        ("$share", None),
        ("$shared/g/t", None),
        ("$SYS/#", None),
        ("$share/g/t", ("g", "t")),
        ("$share/g/#", ("g", "#")),
        ("$share/g//t", ("g", "/t")),
        ("$share/g/$SYS/+", ("g", "$SYS/+")),
    ],
)
def test_parse_shared(topic_filter: str, parts: tuple[str, str] | None) -> None:
    """Section 4.8.2."""
    assert parse_shared(topic_filter) == parts


@pytest.mark.parametrize("topic_filter", ["$share/", "$share//t", "$share/g", "$share/g/", "$share/+/t", "$share/a#/t"])
def test_parse_shared_refuses_malformed_filters(topic_filter: str) -> None:
    """[MQTT-4.8.2-1] [MQTT-4.8.2-2]."""
    with pytest.raises(MalformedPacket):
        parse_shared(topic_filter)


def test_levels_includes_empty_ones() -> None:
    assert levels("/a//b/") == ["", "a", "", "b", ""]


@pytest.mark.parametrize(
    ("topic", "reserved"),
    [
        ("a", False),
        ("$other/a", False),
        ("$SYS", True),
        ("$SYS/broker/uptime", True),
        ("$share/g/a", True),
        ("$share", False),
        ("$SYS/broker/connection/bridge/state", False),
        ("$SYS/broker/connection/a/b/state", True),
    ],
)
def test_is_reserved_for_topics_closed_to_clients(topic: str, reserved: bool) -> None:
    """$SYS belongs to the broker, except the state topics of bridges; $share names subscriptions."""
    assert is_reserved(topic) is reserved
