"""$SYS: this edge's metrics as retained messages, with Mosquitto's names, and the nodes of its map.

They stay at the edge: a subscriber receives the metrics of its own edge. ``edge/subscriptions/sys_scope.py`` lists the
routed topics under $SYS. An edge stores no data, so it has no topics of a broker's storage: storage nodes export them
on ``/metrics``. Source: mosquitto(8), "Broker Status".
"""

from collections.abc import Mapping

from conf.drop_reasons import count_drops
from edge.subscriptions.load_averages import LoadAverages
from mqtt.topics import matches
from wire.messages.cluster_map import ClusterMap

__all__ = ["SysTopics"]

BROKER, LOAD, NODES = "$SYS/broker/", "$SYS/broker/load/", "$SYS/cluster/nodes/"


class SysTopics:
    """Current values by topic, and detection of changes."""

    def __init__(self, version: str, node: str) -> None:
        self._values: dict[str, bytes] = {
            "$SYS/broker/version": f"StrataMQ {version}".encode(),
            "$SYS/broker/node": node.encode(),
        }
        self._loads = LoadAverages()
        self._maxima: dict[str, int] = {}  # maxima of clients and bytes
        self._epoch = -1  # of the published map

    def update(
        self, uptime_s: float, interval_s: float, counters: Mapping[str, int], cluster_map: ClusterMap
    ) -> list[tuple[str, bytes]]:
        """Update the values; return (topic, value) of the changed ones.

        Args:
            uptime_s: Since the edge began to serve.
            interval_s: Since the last call.
            counters: Those of the loop, and ``clients``, ``subscriptions``, ``shared``, ``sockets`` and ``connects``.
            cluster_map: Its nodes are published if its epoch changed.
        """
        totals = _totals(counters)
        new: dict[str, object] = {f"{BROKER}{name}": total for name, total in totals.items() if name not in LOAD_ONLY}
        new |= self._present(counters)
        new["$SYS/broker/publish/bytes/received"] = counters.get("publish_bytes_in", 0)
        new["$SYS/broker/publish/bytes/sent"] = counters.get("publish_bytes_out", 0)
        new["$SYS/broker/uptime"] = f"{int(uptime_s)} seconds"
        new["$SYS/cluster/ring/version"] = cluster_map.epoch
        loads = {LOADS.get(name, name): total for name, total in totals.items()}
        if interval_s > 0:
            new |= {f"{LOAD}{name}": value for name, value in self._loads.update(interval_s, loads).items()}
        if cluster_map.epoch != self._epoch:
            self._epoch = cluster_map.epoch
            new |= self._nodes(cluster_map)
        changed = []
        for topic, value in new.items():
            encoded = str(value).encode()
            if self._values.get(topic) != encoded:
                self._values[topic] = encoded
                changed.append((topic, encoded))
        return changed

    def _present(self, counters: Mapping[str, int]) -> dict[str, object]:
        clients, held = counters.get("clients", 0), counters.get("held_bytes", 0)
        maxima = self._maxima
        maxima["clients"], maxima["held"] = max(maxima.get("clients", 0), clients), max(maxima.get("held", 0), held)
        return {
            "$SYS/broker/clients/connected": clients,
            "$SYS/broker/clients/active": clients,
            "$SYS/broker/clients/total": clients,
            "$SYS/broker/clients/maximum": maxima["clients"],
            "$SYS/broker/heap/current": held,
            "$SYS/broker/heap/maximum": maxima["held"],
            "$SYS/broker/subscriptions/count": counters.get("subscriptions", 0),
            "$SYS/broker/shared_subscriptions/count": counters.get("shared", 0),
        }

    def _nodes(self, cluster_map: ClusterMap) -> dict[str, object]:
        """Return the topics of the map's nodes, and remove those of removed nodes."""
        shown: dict[str, object] = {}
        for name, entry in cluster_map.nodes.items():
            shown[f"{NODES}{name}/tier"] = entry.tier
            shown[f"{NODES}{name}/state"] = entry.state
            shown[f"{NODES}{name}/incarnation"] = entry.incarnation
            shown[f"{NODES}{name}/zone"] = entry.zone
        for topic in [topic for topic in self._values if topic.startswith(NODES) and topic not in shown]:
            del self._values[topic]
        return shown

    def matching(self, topic_filter: str) -> list[tuple[str, bytes]]:
        """Return the matching (topic, value) pairs, sorted by topic."""
        return [(topic, self._values[topic]) for topic in sorted(self._values) if matches(topic_filter, topic)]


LOAD_ONLY = frozenset(("sockets", "connections"))  # these have load averages only
LOADS = {  # names of load averages that differ from the totals' names
    "publish/messages/received": "publish/received",
    "publish/messages/sent": "publish/sent",
    "publish/messages/dropped": "publish/dropped",
}


def _totals(counters: Mapping[str, int]) -> dict[str, int]:
    """Return the monotonic totals by topic name."""
    sent = sum(counters.get(f"publish_out_qos{qos}", 0) for qos in range(3))
    return {
        "bytes/received": counters.get("bytes_in", 0),
        "bytes/sent": counters.get("bytes_out", 0),
        "messages/received": counters.get("packets_in", 0),
        "messages/sent": sent + counters.get("acknowledged", 0),
        "publish/messages/received": sum(counters.get(f"publish_in_qos{qos}", 0) for qos in range(3)),
        "publish/messages/sent": sent,
        "publish/messages/dropped": int(sum(count_drops(counters).values())),
        "sockets": counters.get("sockets", 0),
        "connections": counters.get("connects", 0),
    }
