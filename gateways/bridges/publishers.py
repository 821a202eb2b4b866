"""Publisher names in messages of the cluster, and the topics on which an edge writes them.

A bridge trusts the user properties of ``mqtt/publisher_properties.py`` only on topics that the edge lists in CONNACK.
It refuses an edge that does not name publishers on topics whose templates need them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from access.rules.filters import covers
from mqtt import property_values
from mqtt.packets import Publish
from mqtt.properties import PropertyId
from mqtt.publisher_properties import ASKS, NAMES, VOUCHED_FILTER
from mqtt.topics import levels, matches

__all__ = ["REQUEST_PROPERTIES", "NamedPublishers"]

REQUEST_PROPERTIES: dict[int, object] = {
    PropertyId.USER_PROPERTY: [ASKS]
}  # of CONNECT, requests the filters in CONNACK
NOT_NAMED = "the edge does not name publishers there: {client_id} and {user_name} need edge.publisher_properties"


class NamedPublishers:
    """The topics on which the edge of one connection names publishers.

    Args:
      connack: Properties of its answer to a CONNECT with ``REQUEST_PROPERTIES``.
    """

    def __init__(self, connack: Mapping[int, object]) -> None:
        pairs = property_values.user_properties(connack)
        self._filters = [value for name, value in pairs if name == VOUCHED_FILTER and value]

    def problem(self, filters: Iterable[str]) -> str:
        """Return an error for the first filter without publisher names; "" if there is none.

        Args:
          filters: Without the prefix of a shared subscription.
        """
        named = [levels(each) for each in self._filters]
        missing = (each for each in filters if not any(covers(one, levels(each)) for one in named))
        first = next(missing, "")
        return f"{first}: {NOT_NAMED}" if first else ""

    def check(self, packet: Publish) -> None:
        """Remove publisher names from a message unless an edge wrote them."""
        pairs = property_values.user_properties(packet.properties)
        if any(name in NAMES for name, _ in pairs) and not any(
            matches(each, packet.topic_name) for each in self._filters
        ):
            packet.properties[PropertyId.USER_PROPERTY] = [pair for pair in pairs if pair[0] not in NAMES]
