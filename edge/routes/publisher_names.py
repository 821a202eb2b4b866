"""Publisher names as user properties, on the topics of ``edge.publisher_properties``.

A PUBLISH on these topics has ``stratamq-client-id`` and ``stratamq-user-name``. On all other topics the edge removes
these properties from client input. The loop delegates a message if its Route is named or its properties contain such a
name; other messages cost one comparison.
Source: MQTT 5.0 section 3.3.2.3.7; docs/adr/0057-who-published.md.
"""

from collections.abc import Sequence

from conf.errors import ExitCode, UserError
from edge.loop.state import InboundPublish
from mqtt.data_types import decode_varint, encode_varint
from mqtt.errors import RemoteProtocolError
from mqtt.limits import Limits
from mqtt.properties import PropertyId, decode_properties, encode_properties
from mqtt.publisher_properties import CLIENT_ID, NAMES, USER_NAME
from mqtt.reasons import PacketType
from mqtt.topic_trie import TopicTrie
from mqtt.topics import parse_shared, validate_topic_filter

__all__ = ["PublisherNameTopics", "check_filters", "name_publisher", "remove_names"]

RESERVED = b"\0\x12stratamq-"  # prefix of each of NAMES in bytes
LIMITS = Limits(control_characters=True)  # the loop has validated the client's packet


def check_filters(setting: str, filters: Sequence[str]) -> None:
    """Validate topic filters of the configuration.

    Raises:
        UserError: A filter is invalid, or a shared subscription.
    """
    for topic_filter in filters:
        try:
            if parse_shared(topic_filter) is not None:
                raise RemoteProtocolError("a shared subscription")
            validate_topic_filter(topic_filter)
        except RemoteProtocolError as error:
            raise UserError(f"{setting}: {topic_filter!r} is no topic filter: {error}", ExitCode.USAGE) from error


class PublisherNameTopics:
    """The topics on which a message carries its publisher's names."""

    def __init__(self, filters: Sequence[str]) -> None:
        self._trie = TopicTrie()
        self._any = bool(filters)
        for topic_filter in filters:
            self._trie.add(topic_filter, 0, True)

    def has(self, topic: str) -> bool:
        """Return whether messages of a topic carry their publisher's names."""
        return self._any and bool(self._trie.match(topic))


def name_publisher(publish: InboundPublish, client_id: str, user: str) -> None:
    """Set the publisher's names in a message, and remove names that its client sent.

    Args:
        publish: The message; one from a 3.1.1 client has properties afterwards.
        client_id: Of the publisher.
        user: The authenticated user name, "" for an anonymous client.
    Raises:
        MqttError: Its properties are malformed; the loop rejects such a message.
    """
    _rewrite(publish, ((CLIENT_ID, client_id), (USER_NAME, user)))
    publish.version = 5


def remove_names(publish: InboundPublish) -> None:
    """Remove the reserved names that a client sent.

    Args:
        publish: A message on a topic without publisher names.
    """
    if RESERVED in publish.properties:
        _rewrite(publish, ())


def _rewrite(publish: InboundPublish, added: tuple[tuple[str, str], ...]) -> None:
    block = publish.properties
    properties, _ = decode_properties(encode_varint(len(block)) + block, 0, PacketType.PUBLISH, LIMITS)
    written = properties.pop(PropertyId.USER_PROPERTY, [])
    assert isinstance(written, list)
    kept = [*(pair for pair in written if pair[0] not in NAMES), *added]
    if kept:
        properties[PropertyId.USER_PROPERTY] = kept
    named = encode_properties(properties)
    publish.properties = named[decode_varint(named, 0)[1] :]
