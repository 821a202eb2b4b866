"""Partition metrics of a storage node: they match its state, and the page is computed in slices."""

from typing import Any

import pytest

from conf.metrics import Metrics
from storage.core import StorageCore
from storage.hosting import hosted_partition, storage_metrics
from storage.partition_families import expose_partitions
from storage.queries.query_rows import QueryRows
from storage.state.keys import QUEUE
from storage.state.rows import decode_entry, encode_entry
from storage.store.record import decode_record, encode_record
from tests.storage.requests import message, retained
from tests.storage.storage_cluster import Cluster, with_edge
from tests.storage.test_replication_random import Chaos

BUDGET = 1_000


class Page:
    """The families of one node."""

    def __init__(self, cluster: Cluster, node: str = "s1") -> None:
        core: StorageCore = cluster.nodes[node].core
        self.metrics = Metrics("storage", node, "1")
        shown = QueryRows(node, core.placements.hosted, lambda: core.map, core.served_ms, lambda: 0)
        expose_partitions(self.metrics, shown, core.partition_metrics, core.event_counts, BUDGET)

    def __call__(self) -> dict[str, Any]:
        return self.metrics.read()


def test_metrics_page_contains_sessions_queues_and_retained_messages() -> None:
    cluster, edge = with_edge(partitions=3)
    page = Page(cluster)
    numbers = {(str(number),) for number in range(3)}
    idle = page()
    assert idle["partition_epoch"].keys() == idle["partition_lag_ops"].keys() == numbers
    assert idle["retained_budget_bytes"] == 3 * BUDGET and idle["queue_oldest_seconds"] == {}
    alice = edge.open("alice", "a/#", "b/#")
    edge.open("bob")
    edge.close(alice)
    partition = alice.session >> 48
    for number in range(4):
        edge.publish(message(str(number)), partition)
        cluster.run(2.0)
    edge.publish(retained("kept/1", "12345"), cluster.map.partition_for("kept/1"))
    cluster.settle()
    shown = page()
    assert shown["sessions"] == {("connected",): 1.0, ("absent",): 1.0}
    assert shown["queued_messages"] == 4 and shown["queued_bytes"] > 4 * len("a/b0")
    assert shown["subscriptions"] == {("stored",): 2.0}
    assert (shown["retained_messages"], shown["retained_bytes"]) == (1, 5)
    ((where, oldest_s),) = shown["queue_oldest_seconds"].items()
    assert where == (str(partition),) and 8.0 <= oldest_s < 12.0
    assert sum(shown["queue_fill_ratio"].counts) == 1 and 0 < shown["queue_fullest_ratio"] < 1
    assert shown["messages_dropped_total"]["queue_full",] == 0
    alice = edge.open("alice")
    for push in alice.received:
        edge.acknowledge(push, 4)
    cluster.run(1.0)
    shown = page()
    assert shown["queued_messages"] == 0 and shown["queue_oldest_seconds"] == {}
    assert shown["sessions"] == {("connected",): 2.0, ("absent",): 0.0}


def test_age_of_a_row_without_arrival_is_at_least_the_serving_time() -> None:
    """Such a row has no arrival time; its age was always 0 s, so no alert fired."""
    cluster, edge = with_edge()
    alice = edge.open("alice", "a/#")
    edge.close(alice)
    edge.publish(message(), alice.session >> 48)
    cluster.settle()
    cluster.run(10.0)
    records = cluster.disks["s1"].records
    (key,) = [key for key in records if key[2:3] == QUEUE]
    value = decode_record(key, records[key])
    assert value is not None
    entry = decode_entry(1, value)
    assert entry.arrived
    entry.arrived = 0
    records[key] = encode_record(key, encode_entry(entry))
    cluster.crash_all()
    cluster.run(5.0)
    ((_, first_s),) = Page(cluster)()["queue_oldest_seconds"].items()
    cluster.run(5.0)
    ((_, second_s),) = Page(cluster)()["queue_oldest_seconds"].items()
    assert 0 < first_s <= 6.0 and second_s - first_s == pytest.approx(5.0, abs=0.5)


def test_metrics_page_of_many_sessions_is_computed_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were counted in one piece, up to 50 000 of them: a tenth of a second of the loop."""
    monkeypatch.setattr(hosted_partition, "COUNTED_AT_ONCE", 4)
    cluster, edge = with_edge()
    for number in range(20):
        edge.open(f"c{number}", settle=False)
    cluster.settle()
    core: StorageCore = cluster.nodes["s1"].core
    counted = list(core.partition_metrics.count())
    assert counted.count(4) == 5 and max(counted) == storage_metrics.PARTITION_WEIGHT
    assert list(core.partition_metrics.count()) == [], "no partition has changed since"
    steps = core.partition_metrics.count()
    core.partitions[0].changed = True
    next(steps)
    edge.open("later")
    for _ in steps:
        pass
    assert core.partition_metrics.session_counts() == {"connected": 21, "absent": 0}


def test_counting_pass_resumes_where_the_previous_one_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first partitions were counted each time, and others never, if the first ones kept changing."""
    monkeypatch.setattr(storage_metrics, "COUNTED_PER_PASS", 1)
    cluster, edge = with_edge(partitions=4)
    for number in range(40):
        edge.open(f"c{number}", settle=False)
    cluster.settle()
    core: StorageCore = cluster.nodes["s1"].core
    for _ in range(4):
        core.partitions[0].changed = True  # clients are active there
        for _ in core.partition_metrics.count():
            pass
    assert [core.partitions[number].changed for number in (1, 2, 3)] == [False] * 3


class Watched(Chaos):
    """Faults at every step, with one metrics page per node for the whole run."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, lossy=False)
        self.pages: dict[str, Page] = {}
        self.cores: dict[str, StorageCore] = {}
        self.compared = 0

    def run(self) -> None:
        """Compare pages while messages, connections and faults come and go."""
        for _ in range(300):
            if self.rng.random() < 0.4:
                self.publish()
            if self.rng.random() < 0.1:
                text = "x" * self.rng.randrange(3)
                topic = f"kept/{self.rng.randrange(4)}"
                self.edge.publish(retained(topic, text), self.cluster.map.partition_for(topic))
            if self.rng.random() < 0.1:
                self.edge.open(f"c{self.rng.randrange(9)}", "many/#", settle=False)
            if self.rng.random() < 0.03:
                self.fault()
            self.client_acknowledges()
            self.recover()
            self.cluster.step()
            if self.rng.random() < 0.5:
                self.compare()

    def compare(self) -> None:
        """Compare the page of each live node with a new page."""
        for name, node in self.cluster.nodes.items():
            if self.cores.get(name) is not node.core:
                self.cores[name], self.pages[name] = node.core, Page(self.cluster, name)
            found = {**self.pages[name](), "queue_fill_ratio": None}
            found = {family: {**shown} if isinstance(shown, dict) else shown for family, shown in found.items()}
            anew = {**self.fresh(name)(), "queue_fill_ratio": None}
            assert found == anew
            self.pages[name]()  # cached for its next use
            self.compared += len(anew["partition_epoch"])

    def fresh(self, name: str) -> Page:
        """Return a page without a cache, of partitions without cached metrics."""
        for hosted in self.cores[name].partitions.values():
            hosted.metrics = None
        return Page(self.cluster, name)


@pytest.mark.parametrize("seed", range(6))
def test_cached_metrics_page_matches_a_new_one(seed: int) -> None:
    """Unchanged partitions are not read again."""
    watched = Watched(seed)
    watched.run()
    assert watched.compared > 100


def test_changed_partition_is_exposed_before_it_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """With many changes its sessions are counted in a later pass."""
    cluster, edge = with_edge(partitions=3)
    page = Page(cluster)
    assert page()["retained_messages"] == page()["retained_messages"] == 0
    monkeypatch.setattr(storage_metrics, "COUNTED_PER_PASS", 0)
    edge.publish(retained("kept/1", "12345"), cluster.map.partition_for("kept/1"))
    cluster.settle()
    assert page()["retained_messages"] == 1
