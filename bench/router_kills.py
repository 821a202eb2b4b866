"""kill -9 of the Raft leader, again and again: how long SUBSCRIBE waits, and what publishes on known routes notice.

A real cluster (3 routers, 1 storage node, 2 edges) with clients over TLS. A subscriber of many topics and a publisher
with QoS 1 run all the time; after each kill another client subscribes filters of all shards, one after the other.
"""

import argparse
import json
import threading
import time

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from tests.e2e.local_cluster import LocalCluster, local_cluster

FILTERS = 24  # after each kill, at once, each of another shard
ACK_TIMEOUT_S = 30.0


class Client:
    """A paho client that waits for acknowledgements."""

    def __init__(self, cluster: LocalCluster, edge: int) -> None:
        self.client = paho.Client(CallbackAPIVersion.VERSION2)
        self.client.tls_set(cluster.authority)
        self.received = 0
        self.acknowledged: dict[int, threading.Event] = {}
        self._connected = threading.Event()
        self.client.on_connect = lambda *_: self._connected.set()
        self.client.on_subscribe = lambda _client, _data, number, *_: self._event(number).set()
        self.client.on_message = lambda *_: setattr(self, "received", self.received + 1)
        self.client.connect("localhost", cluster.port(edge))
        self.client.loop_start()
        assert self._connected.wait(ACK_TIMEOUT_S)

    def _event(self, number: int) -> threading.Event:
        return self.acknowledged.setdefault(number, threading.Event())

    def subscribe_all(self, filters: list[str]) -> list[float]:
        """Send every SUBSCRIBE at once; return the seconds until each SUBACK."""
        began = time.monotonic()
        numbers = [self.client.subscribe(name, 1)[1] for name in filters]
        waits = []
        for number in numbers:
            assert number is not None
            assert self._event(number).wait(ACK_TIMEOUT_S), "no SUBACK"
            waits.append(time.monotonic() - began)
        return waits

    def close(self) -> None:
        """Disconnect."""
        self.client.disconnect()
        self.client.loop_stop()


class Publisher(threading.Thread):
    """Publishes on known routes and notes the longest wait for a PUBACK."""

    def __init__(self, cluster: LocalCluster) -> None:
        super().__init__(daemon=True)
        self.client = Client(cluster, 1)
        self.worst_s = 0.0
        self.published = 0
        self.stopping = threading.Event()

    def run(self) -> None:
        """Publish one message after the other."""
        while not self.stopping.wait(0.002):
            began = time.monotonic()
            self.client.client.publish(f"known/{self.published % 50}", b"x", 1).wait_for_publish(ACK_TIMEOUT_S)
            self.worst_s = max(self.worst_s, time.monotonic() - began)
            self.published += 1


def _restarted(cluster: LocalCluster, node: str, before: int) -> bool:
    known = cluster.state["nodes"].get(node)
    return known is not None and known["pid"] != before


def main() -> None:
    """Run and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=15)
    parser.add_argument("--no-restart", action="store_true", help="leave the killed router dead (one kill)")
    arguments = parser.parse_args()
    options = ["--routers", "3", "--storages", "1", "--edges", "2", *(["--no-restart"] * arguments.no_restart)]
    kills = 1 if arguments.no_restart else arguments.kills
    waits, gaps = [], []
    with local_cluster(*options) as cluster:
        listener = Client(cluster, 0)
        listener.subscribe_all(["known/#"])
        publisher = Publisher(cluster)
        publisher.start()
        time.sleep(1.0)
        for number in range(kills):
            leader = cluster.admin("cluster", "status")["leader"]
            before, publisher.worst_s = cluster.pid(leader), 0.0
            client = Client(cluster, 1)
            cluster.kill(leader)
            waits.append(max(client.subscribe_all([f"k{number}-{topic}/x" for topic in range(FILTERS)])))
            client.close()
            if not arguments.no_restart:
                cluster.wait_for(lambda: _restarted(cluster, leader, before), "restarted")  # noqa: B023
                time.sleep(1.5)
            gaps.append(publisher.worst_s)
            print(f"kill {number}: {leader} SUBSCRIBE {waits[-1]:.2f} s, PUBLISH {gaps[-1] * 1000:.0f} ms", flush=True)
        publisher.stopping.set()
        publisher.join()
        time.sleep(0.5)
        print(
            json.dumps(
                {
                    "kills": kills,
                    "subscribe_worst_s": round(max(waits), 3),
                    "subscribe_median_s": round(sorted(waits)[len(waits) // 2], 3),
                    "publish_worst_ms": round(max(gaps) * 1000, 1),
                    "published": publisher.published,
                    "received": listener.received,
                }
            )
        )
        publisher.client.close()
        listener.close()


if __name__ == "__main__":
    main()
