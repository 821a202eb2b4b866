"""The table of alerts: condition, duration, severity, description and remedy.

The HTTP service evaluates the alerts over the nodes' results. ``python -m stratamq.manual`` writes the same table as
Prometheus rules. An alert becomes active when its condition has held for ``for_s``, and clears when the condition ends.
Sans-IO.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from wire.messages.cluster_map import ClusterMap
from wire.messages.hello import TIER_ROUTER
from wire.messages.node_rows import StatsRow

__all__ = ["ALARMS", "ActiveAlert", "Alert", "Alerts", "ClearedAlert", "ClusterView"]

PAST_MAX = 200
DAY_S = 86_400.0
DISK_WARN, DISK_CRITICAL = 0.2, 0.1
CLOCKS_MS = 250
CERTIFICATES = "stratamq_tls_cert_not_after_seconds"
CANARIES = "stratamq_canary_failures_total"
CONNECTS = "stratamq_connects_total"
DROPS = "stratamq_messages_dropped_total"
SLOW_SYNCS, SYNCS = "stratamq_store_slow_syncs_total", "stratamq_store_syncs_total"
ADMISSION = "stratamq_admission_ended_total"
CLOCK = "stratamq_clock_seconds"
DISPLACED_MIN = 20  # unauthenticated connections of one node in five minutes that were displaced or refused
REFUSED_MIN = 20  # connects in five minutes: a few wrong passwords raise no alert
DISK_FREE = "stratamq_disk_free_bytes / stratamq_disk_bytes"
FULL, LAG, TURN = "stratamq_store_full", "stratamq_partition_lag_ops", "stratamq_turn_longest_seconds"
MOVES, GOSSIP = "stratamq_ring_moves_pending", "stratamq_gossip_members"
CONTRADICTING = "stratamq_contradicting_nodes"
GAUGE_FAMILIES = (CERTIFICATES, CONTRADICTING, FULL, LAG, TURN, MOVES, GOSSIP)  # gauges
LAG_OPS = 10_000
MEMBERS = 'stratamq_gossip_members{state="alive"}'
TURN_S = 1.0
OLDEST_S = 600


class ClusterView(NamedTuple):
    """State of the cluster at one evaluation."""

    now_ms: int
    map: ClusterMap
    stats: Mapping[str, StatsRow]  # by node
    silent: Sequence[str]  # live nodes that did not answer
    leader: str
    offsets_ms: Mapping[str, float] = {}  # clock offset of each node from this host
    grown: Mapping[str, Mapping[str, float]] = {}  # by node: increase of its GROWING counters in five minutes
    # by family; ``Alerts.evaluate`` builds it once for all rows of the table
    gauges: Mapping[str, Sequence["Series"]] = {}


Series = tuple[str, str, float]  # node, labels, value
Found = Iterable[tuple[str, str]]  # subject, and value as text


class Alert(NamedTuple):
    """One row. ``expression`` is PromQL over the nodes' metrics; ``find`` evaluates the same over query results."""

    name: str
    severity: str  # "critical": act now; "warning": act soon
    for_s: float
    sentence: str
    do: str
    expression: str
    find: Callable[[ClusterView], Found]


def _silent(view: ClusterView) -> Found:
    return [(node, "does not answer") for node in view.silent]


def _no_leader(view: ClusterView) -> Found:
    return [] if view.leader or not view.map.live(TIER_ROUTER) else [("routers", "no leader")]


def _without_primary(view: ClusterView) -> Found:
    numbers = [number for number, placement in enumerate(view.map.partitions) if not placement.primary]
    return [("partitions", f"{len(numbers)} of {len(view.map.partitions)}")] if numbers else []


def _under_replicated(view: ClusterView) -> Found:
    wanted, alive = view.map.replicas, {name for name, entry in view.map.nodes.items() if entry.alive}
    placed = [placement.in_sync for placement in view.map.partitions if placement.primary]
    short = sum(len(alive.intersection(in_sync)) < wanted for in_sync in placed)
    return [("partitions", f"{short} have fewer than {wanted} copies in sync")] if short else []


def _disk(below: float, above: float) -> Callable[[ClusterView], Found]:
    def find(view: ClusterView) -> Found:
        for node, row in view.stats.items():
            if row.disk_free_bytes is not None and row.disk_bytes:
                share = row.disk_free_bytes / row.disk_bytes
                if above <= share < below:
                    yield node, f"{share:.0%} free"

    return find


def _queue_oldest(view: ClusterView) -> Found:
    for node, row in view.stats.items():
        if (row.queue_oldest_s or 0.0) >= OLDEST_S:
            yield node, f"the oldest message waits for {row.queue_oldest_s:.0f} s"


def _certificates(days: float, more: float) -> Callable[[ClusterView], Found]:
    def find(view: ClusterView) -> Found:
        for node, labels, end in view.gauges.get(CERTIFICATES, ()):
            left = (end - view.now_ms / 1000) / DAY_S
            if more <= left < days:
                yield node, f"{labels}: {left:.1f} days left"

    return find


def _mixed(view: ClusterView) -> Found:
    releases = sorted({row.version for row in view.stats.values() if row.version})
    return [("releases", ", ".join(releases))] if len(releases) > 1 else []


def _clocks(view: ClusterView) -> Found:
    for node, offset in view.offsets_ms.items():
        if abs(offset) >= CLOCKS_MS:
            yield node, f"{offset:+.0f} ms"


def _not_ready(view: ClusterView) -> Found:
    for node, row in view.stats.items():
        if row.ready is False and not row.draining:
            yield node, "; ".join(row.why_not_ready or ["no reason given"])


def _files(view: ClusterView) -> Found:
    for node, row in view.stats.items():
        if row.open_files is not None and row.open_files_max and row.open_files > 0.9 * row.open_files_max:
            yield node, f"{row.open_files} of {row.open_files_max}"


def _canaries(view: ClusterView) -> Found:
    for node, grown in view.grown.items():
        if (count := grown.get(CANARIES, 0.0)) >= 2:
            yield node, f"{count:.0f} in the last five minutes"


def _queues_full(view: ClusterView) -> Found:
    for node, grown in view.grown.items():
        if count := grown.get(f'{DROPS}{{reason="queue_full"}}'):
            yield node, f"{count:.0f} in the last five minutes"


def _syncs(view: ClusterView) -> Found:
    for node, grown in view.grown.items():
        slow, whole = grown.get(SLOW_SYNCS, 0.0), grown.get(SYNCS, 0.0)
        if slow > 0.01 * whole:
            yield node, f"{slow:.0f} of {whole:.0f} in the last five minutes"


def _refused(view: ClusterView) -> Found:
    connects = [item for grown in view.grown.values() for item in grown.items() if item[0].startswith(CONNECTS)]
    refused = sum(value for key, value in connects if 'result="refused"' in key)
    whole = sum(value for _, value in connects)
    return [("edges", f"{refused:.0f} of {whole:.0f}")] if refused > max(REFUSED_MIN, whole / 2) else []


def _gauges(stats: Mapping[str, StatsRow]) -> dict[str, list[Series]]:
    """Return the gauges that alerts use, of all nodes, by family."""
    found: dict[str, list[Series]] = {}
    for node, row in stats.items():
        for key, value in (row.gauges or {}).items():
            if not key.startswith(GAUGE_FAMILIES):  # a storage node has two gauges per partition
                continue
            name, brace, labels = key.partition("{")
            found.setdefault(name, []).append((node, brace + labels, value))
    return found


def _store_full(view: ClusterView) -> Found:
    return [(node, "below its free-space minimum") for node, _, value in view.gauges.get(FULL, ()) if value]


def _contradicting(view: ClusterView) -> Found:
    return [(node, f"{count:.0f} nodes") for node, _, count in view.gauges.get(CONTRADICTING, ()) if count]


def _lag(view: ClusterView) -> Found:
    for node, labels, value in view.gauges.get(LAG, ()):
        if value > LAG_OPS:
            yield f"{node} {labels}", f"{value:.0f} operations behind"


def _turns(view: ClusterView) -> Found:
    for node, _, value in view.gauges.get(TURN, ()):
        if value > TURN_S:
            yield node, f"{value:.1f} s"


def _moves(view: ClusterView) -> Found:
    """The number of moves is part of the subject: a change restarts the alert's duration."""
    pending = max((value for _, _, value in view.gauges.get(MOVES, ())), default=0.0)
    return [(f"{pending:.0f} moves", "no progress")] if pending else []


def _gossip(view: ClusterView) -> Found:
    alive = {
        node: value
        for node, labels, value in view.gauges.get(GOSSIP, ())
        if labels == '{state="alive"}' and value  # 0: a node without gossip
    }
    if len(set(alive.values())) > 1:
        least, most = min(alive.values()), max(alive.values())
        nodes = ", ".join(sorted(node for node, value in alive.items() if value < most)[:3])
        yield "gossip", f"{nodes} see {least:.0f} members, others {most:.0f}"


def _admission(view: ClusterView) -> Found:
    for node, grown in view.grown.items():
        pools: Counter[str] = Counter()
        for key, count in grown.items():
            if key.startswith(ADMISSION) and 'reason="silent"' not in key:
                pools[key.partition('pool="')[2].partition('"')[0]] += int(count)
        for pool, count in pools.items():
            if count > DISPLACED_MIN:
                yield f"{node} {pool}", f"{count} in the last five minutes"


GROWING = frozenset((ADMISSION, CANARIES, CONNECTS, DROPS, SLOW_SYNCS, SYNCS))
ALARMS = (
    Alert(
        "node_down", "critical", 5, "A node does not answer", "start it; `stratamq node list` shows its state",
        'up{job="stratamq"} == 0', _silent,
    ),
    Alert(
        "no_leader", "critical", 10, "The routers have no leader", "start routers until more than half of them run",
        "max(stratamq_raft_leader) == 0", _no_leader,
    ),
    Alert(
        "partition_without_primary", "critical", 3, "Partitions have no primary: their sessions are unavailable",
        "start the storage nodes that have copies; `stratamq ring lost all` names them",
        "max(stratamq_partitions_without_primary) > 0", _without_primary,
    ),
    Alert(
        "under_replicated", "warning", 300, "Partitions have too few copies in sync",
        "find them with `stratamq store replicas`; start or add storage nodes",
        "max(stratamq_partitions_under_replicated) > 0", _under_replicated,
    ),
    Alert(
        "not_ready", "warning", 30, "A node is not ready", "see the reasons in `/readyz` and in the node's log",
        "stratamq_ready == 0", _not_ready,
    ),
    Alert(
        "disk_low", "warning", 60, "A disk is filling", "free disk space, or lower storage.message_expiry_max_s",
        f"{DISK_FREE} < {DISK_WARN} and {DISK_FREE} >= {DISK_CRITICAL}", _disk(DISK_WARN, DISK_CRITICAL),
    ),
    Alert(
        "disk_full", "critical", 10, "A disk is nearly full",
        "free disk space: below its minimum the node refuses messages",
        f"{DISK_FREE} < {DISK_CRITICAL}", _disk(DISK_CRITICAL, -1.0),
    ),
    Alert(
        "queue_oldest", "warning", 60, "Messages are queued for more than ten minutes",
        "find the sessions with `stratamq session list --best oldest_s`",
        f"max by (instance, node) (stratamq_queue_oldest_seconds) > {OLDEST_S}", _queue_oldest,
    ),
    Alert(
        "queue_full", "warning", 0, "Full queues drop messages",
        "find the sessions with `stratamq drops` and `stratamq session list`",
        f'sum by (instance, node) (increase({DROPS}{{reason="queue_full"}}[5m])) > 0', _queues_full,
    ),
    Alert(
        "store_full", "critical", 0, "A storage node refuses messages because its disk is full",
        "free disk space, or lower storage.message_expiry_max_s", "stratamq_store_full > 0", _store_full,
    ),
    Alert(
        "contradicting_nodes", "critical", 0, "Nodes apply a map or a policy that differs from the routers' log",
        "`stratamq cluster status` names the nodes; they reload the state themselves. If their logs have "
"`message.refused`, a step was forged; otherwise a router is faulty, or its log was restored",
        f"max({CONTRADICTING}) > 0", _contradicting,
    ),
    Alert(
        "copies_lag", "warning", 60, "A copy in sync is far behind its primary",
        "find it with `stratamq store replicas`; check its disk and its load",
        f"stratamq_partition_lag_ops > {LAG_OPS}", _lag,
    ),
    Alert(
        "sync_slow", "warning", 60, "More than 1 % of a disk's syncs take longer than 0.13 s",
        "find other processes that write to this disk; PUBACKs are delayed",
        f"increase({SLOW_SYNCS}[5m]) > 0.01 * increase({SYNCS}[5m])", _syncs,
    ),
    Alert(
        "loop_stalls", "warning", 0, "A node's event loop was blocked for more than a second",
        "check its load and its log; all its clients were delayed",
        f"stratamq_turn_longest_seconds > {TURN_S:g}", _turns,
    ),
    Alert(
        "canary_fails", "warning", 0, "Canary messages of an edge get no response",
        "`/readyz` of that edge names the shard or the partition that does not respond",
        f"increase({CANARIES}[5m]) >= 2", _canaries,
    ),
    Alert(
        "connects_refused", "warning", 60, "Most connects are refused",
        "find the clients and reasons with `stratamq journal`",
        f'sum(increase({CONNECTS}{{result="refused"}}[5m])) > {REFUSED_MIN} and '
        f'sum(increase({CONNECTS}{{result="refused"}}[5m])) > sum(increase({CONNECTS}[5m])) / 2', _refused,
    ),
    Alert(
        "unauthenticated_crowd", "warning", 60, "Unauthenticated connections displace each other",
        "find their addresses at the node (`ss -tn`, `ss -un`) and block them with a packet filter",
        f'sum by (instance, node, pool) (increase({ADMISSION}{{reason!="silent"}}[5m])) > {DISPLACED_MIN}', _admission,
    ),
    Alert(
        "moves_stalled", "warning", 900, "A rebalance makes no progress", "find the cause with `stratamq ring status`",
        "max(stratamq_ring_moves_pending) > 0 and max(stratamq_ring_moves_pending) == "
        "max(max_over_time(stratamq_ring_moves_pending[5m]))", _moves,
    ),
    Alert(
        "gossip_disagrees", "warning", 120, "Nodes disagree about the members",
        "find the missing members with `stratamq membership list`; check the UDP traffic between the nodes",
        f"max({MEMBERS}) - min({MEMBERS} > 0) > 0", _gossip,
    ),
    Alert(
        "certificate_30_days", "warning", 0, "A certificate expires within 30 days", "issue a new one, then reload",
        "stratamq_tls_cert_not_after_seconds - time() < 30 * 86400", _certificates(30, 7),
    ),
    Alert(
        "certificate_7_days", "critical", 0, "A certificate expires within 7 days", "issue a new one now, then reload",
        "stratamq_tls_cert_not_after_seconds - time() < 7 * 86400", _certificates(7, -1e9),
    ),
    Alert(
        "open_files", "warning", 60, "A node has more than 90 % of its permitted files open",
        "raise its limit (ulimit -n)",
        "stratamq_open_files / stratamq_open_files_max > 0.9", _files,
    ),
    Alert(
        "mixed_releases", "warning", DAY_S, "Nodes run different releases", "finish the upgrade",
        "count(count by (version) (stratamq_build_info)) > 1", _mixed,
    ),
    Alert(
        "clock_offset", "warning", 60, "A node's clock is wrong", "synchronize all nodes with one time server",
        f"abs({CLOCK} - timestamp({CLOCK})) > {CLOCKS_MS / 1000:g}", _clocks,
    ),
)  # fmt: skip


class ActiveAlert(msgspec.Struct, frozen=True):
    """An active alert."""

    name: str
    severity: str
    about: str
    sentence: str
    do: str
    since_ms: int


class ClearedAlert(msgspec.Struct, frozen=True):
    """A cleared alert."""

    name: str
    severity: str
    about: str
    sentence: str
    since_ms: int
    ended_at_ms: int


class Alerts:
    """Active and cleared alerts."""

    def __init__(self, table: Sequence[Alert] = ALARMS) -> None:
        self._table = table
        self._met: dict[tuple[str, str], int] = {}  # alert and subject -> time since which its condition holds
        self._active: dict[tuple[str, str], ActiveAlert] = {}
        self._past: list[ClearedAlert] = []  # newest first

    @property
    def active(self) -> list[ActiveAlert]:
        """Active alerts: critical ones first, then the oldest."""
        return sorted(self._active.values(), key=lambda item: (item.severity != "critical", item.since_ms, item.name))

    @property
    def past(self) -> list[ClearedAlert]:
        """Cleared alerts, newest first."""
        return list(self._past)

    def evaluate(self, view: ClusterView) -> tuple[list[ActiveAlert], list[ClearedAlert]]:
        """Evaluate all alerts; return those that became active and those that cleared."""
        view = view._replace(gauges=_gauges(view.stats))
        met: dict[tuple[str, str], int] = {}
        began: list[ActiveAlert] = []
        for alarm in self._table:
            for about, value in alarm.find(view):
                key = alarm.name, about
                met[key] = self._met.get(key, view.now_ms)
                if view.now_ms - met[key] < alarm.for_s * 1000:
                    continue
                sentence = f"{alarm.sentence} ({about}: {value})"
                before = self._active.get(key)
                now = ActiveAlert(alarm.name, alarm.severity, about, sentence, alarm.do, met[key])
                self._active[key] = now
                if before is None:
                    began.append(now)
        self._met = met
        return began, self._end(met, view.now_ms)

    def _end(self, met: Mapping[tuple[str, str], int], now_ms: int) -> list[ClearedAlert]:
        ended = []
        for key in [key for key in self._active if key not in met]:
            alarm = self._active.pop(key)
            ended.append(ClearedAlert(alarm.name, alarm.severity, alarm.about, alarm.sentence, alarm.since_ms, now_ms))
        self._past = (ended[::-1] + self._past)[:PAST_MAX]
        return ended
