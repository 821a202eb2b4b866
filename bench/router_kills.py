"""kill -9 of the Raft leader, repeatedly: the wait of SUBSCRIBE, and the delay of publishes on known routes.

A real cluster (3 routers, 1 storage node, 2 edges). A subscriber of known topics at one edge and a publisher with QoS 1
at the other run all the time, one message after the other; after each kill another client subscribes filters of all
shards at once. Printed per kill: the time until the last SUBACK, and the longest pause between two deliveries and the
longest wait for a PUBACK from just before the kill to the end of SUBSCRIBE; for comparison the longest pause of an
equally long time without a kill, the machine's own noise.
"""

import argparse
import contextlib
import json
import os
import threading
import time

from tests.clients.blocking import BlockingClient
from tests.e2e.local_cluster import LocalCluster, local_cluster

FILTERS = 24  # after each kill, at once, each of another shard
QUIET_S = 1.5  # before a kill: links reconnect, and the machine is measured without one
PUBLISH = 3
KNOWN = [f"known/{number}" for number in range(50)]


def _client(cluster: LocalCluster, edge: int, name: str) -> BlockingClient:
    client = BlockingClient(cluster.port(edge, "plain"), version=4)
    client.open(name, keep_alive_s=0)
    return client


class Listener(threading.Thread):
    """Notes the longest pause between two deliveries."""

    def __init__(self, cluster: LocalCluster) -> None:
        super().__init__(daemon=True)
        self.client = _client(cluster, 0, "listener")
        self.client.subscribe_each("known/#")
        self.received = 0
        self._last = time.monotonic()
        self._longest_s = 0.0

    def run(self) -> None:
        """Receive until the cluster ends."""
        with contextlib.suppress(OSError):
            while True:
                packet = self.client.next_bytes()
                if not packet:
                    return
                assert packet[0] >> 4 == PUBLISH
                now = time.monotonic()
                self.received += 1
                self._longest_s = max(self._longest_s, now - self._last)
                self._last = now

    def longest_s(self) -> float:
        """Return the longest pause since the last call, the present one included."""
        longest, self._longest_s = max(self._longest_s, time.monotonic() - self._last), 0.0
        return longest


class Publisher(threading.Thread):
    """Publishes on known routes, one message after the other, and notes the longest wait for a PUBACK."""

    def __init__(self, cluster: LocalCluster) -> None:
        super().__init__(daemon=True)
        self.client = _client(cluster, 1, "publisher")
        self.worst_s = 0.0
        self.published = 0
        self.stopping = threading.Event()

    def run(self) -> None:
        """Publish."""
        while not self.stopping.wait(0.002):
            began = time.monotonic()
            self.client.publish(KNOWN[self.published % len(KNOWN)])
            self.worst_s = max(self.worst_s, time.monotonic() - began)
            self.published += 1


KILLS_PER_CLUSTER = 20  # `up` lets a node lie that died eight times in a row without running for long in between


def _restarted(cluster: LocalCluster, node: str, before: int) -> bool:
    known = cluster.state["nodes"].get(node)
    return known is not None and known["pid"] != before


def main() -> None:
    """Run and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=15)
    parser.add_argument("--no-restart", action="store_true", help="leave the killed router dead (one kill)")
    arguments = parser.parse_args()
    options = ["--routers", "3", "--storages", "1", "--edges", "2", "--plain-port", "0"]
    options += ["--no-restart"] * arguments.no_restart
    kills = 1 if arguments.no_restart else arguments.kills
    figures: dict[str, list[float]] = {"subscribe": [], "pause": [], "puback": [], "pause_without_kill": []}
    published = received = 0
    for first in range(0, kills, KILLS_PER_CLUSTER):
        with local_cluster(*options) as cluster:
            listener, publisher = Listener(cluster), Publisher(cluster)
            listener.start()
            publisher.start()
            time.sleep(QUIET_S)
            for number in range(first, min(kills, first + KILLS_PER_CLUSTER)):
                _kill_leader(cluster, number, listener, publisher, figures, restart=not arguments.no_restart)
            publisher.stopping.set()
            publisher.join()
            time.sleep(0.5)
            published, received = published + publisher.published, received + listener.received
            publisher.client.close()
    summary: dict[str, object] = {"kills": kills}
    for what, values in figures.items():
        summary[f"{what}_median_ms"] = round(sorted(values)[len(values) // 2] * 1000, 1)
        summary[f"{what}_worst_ms"] = round(max(values) * 1000, 1)
    print(json.dumps({**summary, "published": published, "received": received}))


def _kill_leader(
    cluster: LocalCluster,
    number: int,
    listener: Listener,
    publisher: Publisher,
    figures: dict[str, list[float]],
    *,
    restart: bool,
) -> None:
    """Kill the leader once, and record the clients' waits."""
    listener.longest_s()
    time.sleep(QUIET_S)
    figures["pause_without_kill"].append(listener.longest_s())
    leader = cluster.admin("cluster", "status")["leader"]
    before = cluster.pid(leader)
    client = _client(cluster, 1, f"subscriber-{number}")
    listener.longest_s()
    publisher.worst_s = 0.0
    cluster.kill(leader)
    figures["subscribe"].append(client.subscribe_each(*[f"k{number}-{topic}/x" for topic in range(FILTERS)]))
    figures["pause"].append(listener.longest_s())
    figures["puback"].append(publisher.worst_s)
    client.close()
    waits_text = ", ".join(f"{what} {values[-1] * 1000:.0f} ms" for what, values in figures.items())
    print(f"kill {number}: {leader}: {waits_text}, load {os.getloadavg()[0]:.1f}", flush=True)
    if restart:
        cluster.wait_for(lambda: _restarted(cluster, leader, before), "restarted")


if __name__ == "__main__":
    main()
