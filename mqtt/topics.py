"""Topic names and topic filters: syntax, shared subscriptions, and the reference matcher.

Defines valid and matching topics. Fast matching of many filters is in ``mqtt/topic_trie.py``, of many topics in
``mqtt/topic_index.py``; both are tested against ``matches``. Source: MQTT 5.0 sections 4.7 and 4.8.2.
"""

from mqtt.errors import MalformedPacket, RemoteProtocolError
from mqtt.reasons import ReasonCode

__all__ = [
    "SHARE_PREFIX",
    "TOPIC_BYTES_MAX",
    "has_wildcard",
    "is_reserved",
    "levels",
    "matches",
    "parse_shared",
    "validate_topic_filter",
    "validate_topic_name",
]

TOPIC_BYTES_MAX = 65_535  # a string's length is two bytes [MQTT-4.7.3-3]
SHARE_PREFIX = "$share/"


def levels(topic: str) -> list[str]:
    """Return the levels of a topic name or filter; a level may be empty (section 4.7.1.1)."""
    return topic.split("/")


def has_wildcard(topic_filter: str) -> bool:
    """Whether a valid filter has a wildcard."""
    return "+" in topic_filter or "#" in topic_filter


def is_reserved(topic: str) -> bool:
    """Return whether clients may not publish to a topic: only the broker writes $SYS, and $share names subscriptions.

    Exception: bridges of other brokers publish their own state to $SYS/broker/connection/<name>/state. Source: MQTT 5.0
    sections 4.7.2, 4.8.2.
    """
    if not topic.startswith("$"):
        return False
    if topic.startswith("$SYS/broker/connection/") and topic.endswith("/state"):
        return topic.count("/") != 4
    return topic.startswith(("$SYS", "$share/"))


def validate_topic_name(
    topic_name: str, *, bytes_max: int = TOPIC_BYTES_MAX, levels_max: int = TOPIC_BYTES_MAX
) -> None:
    """Check the name of a PUBLISH or a will.

    Args:
        bytes_max: Longest name accepted, in bytes of UTF-8.
        levels_max: Most levels accepted.
    Raises:
        MalformedPacket: If the specification forbids it.
        RemoteProtocolError: 0x90, if it is well formed but beyond a limit.
    """
    if not topic_name:
        raise MalformedPacket("empty topic name [MQTT-4.7.3-1]")
    if "+" in topic_name or "#" in topic_name:
        raise MalformedPacket("wildcard in a topic name [MQTT-3.3.2-2]")
    _check_text_and_limits(topic_name, bytes_max, levels_max, ReasonCode.TOPIC_NAME_INVALID)


def validate_topic_filter(
    topic_filter: str, *, bytes_max: int = TOPIC_BYTES_MAX, levels_max: int = TOPIC_BYTES_MAX
) -> None:
    """Check a topic filter; of a shared subscription, the part after the share name.

    Raises:
        MalformedPacket: If the specification forbids it.
        RemoteProtocolError: 0x8F, if it is well formed but beyond a limit.
    """
    if not topic_filter:
        raise MalformedPacket("empty topic filter [MQTT-4.7.3-1]")
    if "#" in topic_filter and (
        topic_filter.index("#") != len(topic_filter) - 1 or not f"/{topic_filter}".endswith("/#")
    ):
        raise MalformedPacket("# is not the whole last level [MQTT-4.7.1-1]")
    if "+" in topic_filter:
        for level in topic_filter.split("/"):
            if "+" in level and level != "+":
                raise MalformedPacket("+ is not a whole level [MQTT-4.7.1-2]")
    _check_text_and_limits(topic_filter, bytes_max, levels_max, ReasonCode.TOPIC_FILTER_INVALID)


def _check_text_and_limits(topic: str, bytes_max: int, levels_max: int, reason_code: int) -> None:
    if "\0" in topic:
        raise MalformedPacket("U+0000 in a topic [MQTT-4.7.3-2]")
    # A character has at most four bytes: most topics need not be encoded again.
    if len(topic) * 4 > bytes_max and len(topic.encode("utf-8", "surrogatepass")) > bytes_max:
        if bytes_max >= TOPIC_BYTES_MAX:
            raise MalformedPacket("topic longer than 65535 bytes [MQTT-4.7.3-3]")
        raise RemoteProtocolError(f"topic longer than {bytes_max} bytes", reason_code)
    if levels_max < TOPIC_BYTES_MAX and topic.count("/") >= levels_max:
        raise RemoteProtocolError(f"topic with more than {levels_max} levels", reason_code)


def parse_shared(topic_filter: str) -> tuple[str, str] | None:
    """Split ``$share/name/filter`` into (share name, filter); None if it is not a shared subscription.

    The filter after the name is not validated here.

    Raises:
        MalformedPacket: If the share name is missing, empty or has a wildcard, or no filter follows.
    """
    if not topic_filter.startswith(SHARE_PREFIX):  # a bare "$share" is an ordinary filter
        return None
    share_name, slash, shared_filter = topic_filter[len(SHARE_PREFIX) :].partition("/")
    if not share_name:
        raise MalformedPacket("empty share name [MQTT-4.8.2-1]")
    if "+" in share_name or "#" in share_name:
        raise MalformedPacket("wildcard in a share name [MQTT-4.8.2-2]")
    if not slash or not shared_filter:
        raise MalformedPacket("no topic filter behind the share name [MQTT-4.8.2-2]")
    return share_name, shared_filter


def matches(topic_filter: str, topic_name: str) -> bool:
    """Return whether a valid filter matches a valid topic name: the reference for all faster matchers (section 4.7)."""
    wanted, given = topic_filter.split("/"), topic_name.split("/")
    if topic_name.startswith("$") and wanted[0] in ("+", "#"):
        return False  # [MQTT-4.7.2-1]
    for position, level in enumerate(wanted):
        if level == "#":
            return True  # the parent level included (section 4.7.1.2)
        if position == len(given) or level not in ("+", given[position]):
            return False
    return len(wanted) == len(given)
