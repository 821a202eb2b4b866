"""$SYS: this edge's figures as retained messages, with Mosquitto's names where there is one.

They never leave the edge: a subscriber sees the figures of the node that it is connected to. Topics under $SYS that are
routed are in ``edge/subscriptions/sys_scope.py``.
"""

from collections.abc import Mapping

from conf.drop_reasons import count_drops
from mqtt.topics import matches

__all__ = ["SysTopics"]


class SysTopics:
    """Current values by topic, and which of them changed."""

    def __init__(self, version: str, node: str) -> None:
        self._values: dict[str, bytes] = {
            "$SYS/broker/version": f"StrataMQ {version}".encode(),
            "$SYS/broker/node": node.encode(),
        }

    def update(self, uptime_s: float, counters: Mapping[str, int], map_epoch: int) -> list[tuple[str, bytes]]:
        """Take new figures; return (topic, value) of those that changed."""
        new = {
            "$SYS/broker/uptime": f"{int(uptime_s)} seconds",
            "$SYS/broker/clients/connected": counters.get("clients", 0),
            "$SYS/broker/subscriptions/count": counters.get("subscriptions", 0),
            "$SYS/broker/bytes/received": counters.get("bytes_in", 0),
            "$SYS/broker/bytes/sent": counters.get("bytes_out", 0),
            "$SYS/broker/messages/received": counters.get("packets_in", 0),
            "$SYS/broker/publish/messages/received": sum(counters.get(f"publish_in_qos{qos}", 0) for qos in range(3)),
            "$SYS/broker/publish/messages/sent": sum(counters.get(f"publish_out_qos{qos}", 0) for qos in range(3)),
            "$SYS/broker/publish/messages/dropped": int(sum(count_drops(counters).values())),
            "$SYS/cluster/ring/version": map_epoch,
        }
        changed = []
        for topic, value in new.items():
            encoded = str(value).encode()
            if self._values.get(topic) != encoded:
                self._values[topic] = encoded
                changed.append((topic, encoded))
        return changed

    def matching(self, topic_filter: str) -> list[tuple[str, bytes]]:
        """Return (topic, value) that a filter matches, by topic."""
        return [(topic, self._values[topic]) for topic in sorted(self._values) if matches(topic_filter, topic)]
