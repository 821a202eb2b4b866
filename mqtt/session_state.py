"""Small state of one connection or session: packet identifiers, topic aliases, the keep-alive deadline.

What is in flight, and what survives a connection, is the session's owner's affair.
"""

import math

from mqtt.errors import RemoteProtocolError
from mqtt.reasons import ReasonCode

__all__ = ["PACKET_IDENTIFIER_MAX", "InboundAliases", "KeepAlive", "OutboundAliases", "PacketIdentifiers"]

PACKET_IDENTIFIER_MAX = 65_535


class PacketIdentifiers:
    """Identifiers that we give to packets of one session (section 2.2.1).

    They count up from 1 and wrap; one in use is not given again [MQTT-2.2.1-3] [MQTT-2.2.1-4].
    """

    __slots__ = ("_in_use", "last")

    def __init__(self) -> None:
        self._in_use: set[int] = set()
        self.last = 0

    def __len__(self) -> int:
        """Return how many are in use."""
        return len(self._in_use)

    def __contains__(self, packet_identifier: int) -> bool:
        return packet_identifier in self._in_use

    def allocate(self) -> int | None:
        """Return the next free identifier, now in use; None when all 65 535 are."""
        if len(self._in_use) == PACKET_IDENTIFIER_MAX:
            return None
        candidate = self.last
        while True:  # ends: one is free
            candidate = candidate % PACKET_IDENTIFIER_MAX + 1
            if candidate not in self._in_use:
                break
        self.last = candidate
        self._in_use.add(candidate)
        return candidate

    def claim(self, packet_identifier: int) -> bool:
        """Mark an identifier of a restored session as in use; return False if it already was."""
        if packet_identifier in self._in_use:
            return False
        self._in_use.add(packet_identifier)
        return True

    def release(self, packet_identifier: int) -> bool:
        """Make an identifier free again; return False if it was not in use."""
        if packet_identifier not in self._in_use:
            return False
        self._in_use.discard(packet_identifier)
        return True


class InboundAliases:
    """Topic aliases that the peer sets (section 3.3.2.3.4); they live as long as the connection [MQTT-3.3.2-7].

    Args:
        topic_alias_maximum: What we announced; 0 means that none is accepted.
    """

    __slots__ = ("_names", "topic_alias_maximum")

    def __init__(self, topic_alias_maximum: int) -> None:
        self.topic_alias_maximum = topic_alias_maximum
        self._names: dict[int, str] = {}

    def resolve(self, topic_name: str, topic_alias: int | None) -> str:
        """Return the topic name that a PUBLISH means, and remember a new or changed alias.

        Raises:
            RemoteProtocolError: 0x94 if the alias is 0 or above the maximum [MQTT-3.3.2-8] [MQTT-3.3.2-9]; 0x82 if the
                name is empty and the alias unknown (section 3.3.4), or both are missing.
        """
        if topic_alias is None:
            if not topic_name:
                raise RemoteProtocolError("neither topic name nor topic alias, section 3.3.2.1")
            return topic_name
        if not 1 <= topic_alias <= self.topic_alias_maximum:
            raise RemoteProtocolError(
                f"topic alias {topic_alias}, maximum {self.topic_alias_maximum} [MQTT-3.3.2-9]",
                ReasonCode.TOPIC_ALIAS_INVALID,
            )
        if topic_name:
            self._names[topic_alias] = topic_name
            return topic_name
        known = self._names.get(topic_alias)
        if known is None:
            raise RemoteProtocolError(f"topic alias {topic_alias} is not set, section 3.3.4")
        return known


class OutboundAliases:
    """Topic aliases that we set towards the peer; first come, first served, never reassigned.

    Not reassigning costs nothing where few topics repeat. The caller confirms what it wrote, so that an alias stays
    right when the packet it was chosen for is dropped as too large.

    Args:
        topic_alias_maximum: What the peer announced, or less; 0 means that none may be sent [MQTT-3.1.2-26].
    """

    __slots__ = ("_aliases", "topic_alias_maximum")

    def __init__(self, topic_alias_maximum: int) -> None:
        self.topic_alias_maximum = topic_alias_maximum
        self._aliases: dict[str, int] = {}

    def choose(self, topic_name: str) -> tuple[str, int | None]:
        """Return (topic name to write, alias to write or None); the name is empty when the peer knows the alias.

        A new alias counts as known only after ``written``: until then it is chosen again, with the name.
        """
        known = self._aliases.get(topic_name)
        if known is not None:
            return "", known
        if len(self._aliases) >= self.topic_alias_maximum:
            return topic_name, None
        return topic_name, len(self._aliases) + 1

    def written(self, topic_name: str, topic_alias: int | None) -> None:
        """Record that a PUBLISH with what ``choose`` returned is on its way."""
        if topic_alias is not None and topic_name:
            self._aliases[topic_name] = topic_alias


class KeepAlive:
    """Deadline after which a silent client is dropped (section 3.1.2.10, [MQTT-3.1.2-22]).

    Args:
        keep_alive_s: Of the CONNECT, or the server's own; 0 switches it off.
        now: Seconds of the caller's monotonic clock.
    """

    __slots__ = ("_grace_s", "deadline")

    def __init__(self, keep_alive_s: int, now: float) -> None:
        self._grace_s = 1.5 * keep_alive_s if keep_alive_s else math.inf
        self.deadline = now + self._grace_s

    def packet_received(self, now: float) -> None:
        """Move the deadline: any packet counts as life, not only PINGREQ."""
        self.deadline = now + self._grace_s
