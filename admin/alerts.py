"""The one table of alarms: what is wrong, when, how bad, and what to do.

The service evaluates them over what the nodes answer; ``python -m stratamq.manual`` writes the same table as rules for
Prometheus. An alarm begins when its condition has held for its time, and ends with it. Sans-IO.
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
DISPLACED_MIN = 20  # unauthenticated connections of one node in five minutes, which were displaced or refused
REFUSED_MIN = 20  # connects in five minutes: a few wrong passwords are no alarm
DISK_FREE = "stratamq_disk_free_bytes / stratamq_disk_bytes"
FULL, LAG, TURN = "stratamq_store_full", "stratamq_partition_lag_ops", "stratamq_turn_longest_seconds"
MOVES, GOSSIP = "stratamq_ring_moves_pending", "stratamq_gossip_members"
CONTRADICTING = "stratamq_contradicting_nodes"
LOOKED_AT = (CERTIFICATES, CONTRADICTING, FULL, LAG, TURN, MOVES, GOSSIP)  # gauges
LAG_OPS = 10_000
MEMBERS = 'stratamq_gossip_members{state="alive"}'
TURN_S = 1.0
OLDEST_S = 600


class ClusterView(NamedTuple):
    """The findings of one look at the cluster."""

    now_ms: int
    map: ClusterMap
    stats: Mapping[str, StatsRow]  # by node
    silent: Sequence[str]  # live nodes that did not answer
    leader: str
    offsets_ms: Mapping[str, float] = {}  # of nodes' clocks against this one
    grown: Mapping[str, Mapping[str, float]] = {}  # by node: what its counters of GROWING gained in five minutes
    gauges: Mapping[str, Sequence["Series"]] = {}  # by family; ``Alerts.look`` makes it, once for all rows of the table


Series = tuple[str, str, float]  # node, labels, value
Found = Iterable[tuple[str, str]]  # what it is about, and the figure in words


class Alert(NamedTuple):
    """One row. ``expression`` is PromQL over the nodes' pages, ``find`` the same over what nodes answer to a look."""

    name: str
    severity: str  # "critical": somebody must act now; "warning": soon
    for_s: float
    sentence: str
    do: str
    expression: str
    find: Callable[[ClusterView], Found]


def _silent(sight: ClusterView) -> Found:
    return [(node, "does not answer") for node in sight.silent]


def _no_leader(sight: ClusterView) -> Found:
    return [] if sight.leader or not sight.map.live(TIER_ROUTER) else [("routers", "none leads")]


def _without_primary(sight: ClusterView) -> Found:
    numbers = [number for number, placement in enumerate(sight.map.partitions) if not placement.primary]
    return [("partitions", f"{len(numbers)} of {len(sight.map.partitions)}")] if numbers else []


def _under_replicated(sight: ClusterView) -> Found:
    wanted, alive = sight.map.replicas, {name for name, entry in sight.map.nodes.items() if entry.alive}
    placed = [placement.in_sync for placement in sight.map.partitions if placement.primary]
    short = sum(len(alive.intersection(in_sync)) < wanted for in_sync in placed)
    return [("partitions", f"{short} have fewer than {wanted} copies in sync")] if short else []


def _disk(below: float, above: float) -> Callable[[ClusterView], Found]:
    def find(sight: ClusterView) -> Found:
        for node, row in sight.stats.items():
            if row.disk_free_bytes is not None and row.disk_bytes:
                share = row.disk_free_bytes / row.disk_bytes
                if above <= share < below:
                    yield node, f"{share:.0%} free"

    return find


def _queue_oldest(sight: ClusterView) -> Found:
    for node, row in sight.stats.items():
        if (row.queue_oldest_s or 0.0) >= OLDEST_S:
            yield node, f"the oldest message waits for {row.queue_oldest_s:.0f} s"


def _certificates(days: float, more: float) -> Callable[[ClusterView], Found]:
    def find(sight: ClusterView) -> Found:
        for node, labels, end in sight.gauges.get(CERTIFICATES, ()):
            left = (end - sight.now_ms / 1000) / DAY_S
            if more <= left < days:
                yield node, f"{labels}: {left:.1f} days left"

    return find


def _mixed(sight: ClusterView) -> Found:
    releases = sorted({row.version for row in sight.stats.values() if row.version})
    return [("releases", ", ".join(releases))] if len(releases) > 1 else []


def _clocks(sight: ClusterView) -> Found:
    for node, offset in sight.offsets_ms.items():
        if abs(offset) >= CLOCKS_MS:
            yield node, f"{offset:+.0f} ms"


def _not_ready(sight: ClusterView) -> Found:
    for node, row in sight.stats.items():
        if row.ready is False and not row.draining:
            yield node, "; ".join(row.why_not_ready or ["it does not say why"])


def _files(sight: ClusterView) -> Found:
    for node, row in sight.stats.items():
        if row.open_files is not None and row.open_files_max and row.open_files > 0.9 * row.open_files_max:
            yield node, f"{row.open_files} of {row.open_files_max}"


def _canaries(sight: ClusterView) -> Found:
    for node, grown in sight.grown.items():
        if (count := grown.get(CANARIES, 0.0)) >= 2:
            yield node, f"{count:.0f} in the last five minutes"


def _queues_full(sight: ClusterView) -> Found:
    for node, grown in sight.grown.items():
        if count := grown.get(f'{DROPS}{{reason="queue_full"}}'):
            yield node, f"{count:.0f} in the last five minutes"


def _syncs(sight: ClusterView) -> Found:
    for node, grown in sight.grown.items():
        slow, whole = grown.get(SLOW_SYNCS, 0.0), grown.get(SYNCS, 0.0)
        if slow > 0.01 * whole:
            yield node, f"{slow:.0f} of {whole:.0f} in the last five minutes"


def _refused(sight: ClusterView) -> Found:
    connects = [one for grown in sight.grown.values() for one in grown.items() if one[0].startswith(CONNECTS)]
    refused = sum(value for key, value in connects if 'result="refused"' in key)
    whole = sum(value for _, value in connects)
    return [("edges", f"{refused:.0f} of {whole:.0f}")] if refused > max(REFUSED_MIN, whole / 2) else []


def _gauges(stats: Mapping[str, StatsRow]) -> dict[str, list[Series]]:
    """Return the gauges of all nodes that an alarm looks at, by family."""
    found: dict[str, list[Series]] = {}
    for node, row in stats.items():
        for key, value in (row.gauges or {}).items():
            if not key.startswith(LOOKED_AT):  # a storage node has two of each partition
                continue
            name, brace, labels = key.partition("{")
            found.setdefault(name, []).append((node, brace + labels, value))
    return found


def _store_full(sight: ClusterView) -> Found:
    return [(node, "below its floor") for node, _, value in sight.gauges.get(FULL, ()) if value]


def _contradicting(sight: ClusterView) -> Found:
    return [(node, f"{count:.0f} nodes") for node, _, count in sight.gauges.get(CONTRADICTING, ()) if count]


def _lag(sight: ClusterView) -> Found:
    for node, labels, value in sight.gauges.get(LAG, ()):
        if value > LAG_OPS:
            yield f"{node} {labels}", f"{value:.0f} operations behind"


def _turns(sight: ClusterView) -> Found:
    for node, _, value in sight.gauges.get(TURN, ()):
        if value > TURN_S:
            yield node, f"{value:.1f} s"


def _moves(sight: ClusterView) -> Found:
    """The number is part of the subject: when it changes, the time of the alarm begins anew."""
    pending = max((value for _, _, value in sight.gauges.get(MOVES, ())), default=0.0)
    return [(f"{pending:.0f} moves", "none was done meanwhile")] if pending else []


def _gossip(sight: ClusterView) -> Found:
    alive = {
        node: value
        for node, labels, value in sight.gauges.get(GOSSIP, ())
        if labels == '{state="alive"}' and value  # 0: a node that does not gossip
    }
    if len(set(alive.values())) > 1:
        least, most = min(alive.values()), max(alive.values())
        nodes = ", ".join(sorted(node for node, value in alive.items() if value < most)[:3])
        yield "gossip", f"{nodes} see {least:.0f} members, others {most:.0f}"


def _admission(sight: ClusterView) -> Found:
    for node, grown in sight.grown.items():
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
        "no_leader", "critical", 10, "No router leads", "start routers until more than half of them run",
        "max(stratamq_raft_leader) == 0", _no_leader,
    ),
    Alert(
        "partition_without_primary", "critical", 3, "Partitions have no primary: their sessions cannot be reached",
        "start the storage nodes that have copies; `stratamq ring lost all` names them",
        "max(stratamq_partitions_without_primary) > 0", _without_primary,
    ),
    Alert(
        "under_replicated", "warning", 300, "Partitions have too few copies in sync",
        "`stratamq store replicas` shows which; start or add storage nodes",
        "max(stratamq_partitions_under_replicated) > 0", _under_replicated,
    ),
    Alert(
        "not_ready", "warning", 30, "A node is not ready", "`/readyz` and its log say what it waits for",
        "stratamq_ready == 0", _not_ready,
    ),
    Alert(
        "disk_low", "warning", 60, "A disk is filling", "make room, or lower storage.message_expiry_max_s",
        f"{DISK_FREE} < {DISK_WARN} and {DISK_FREE} >= {DISK_CRITICAL}", _disk(DISK_WARN, DISK_CRITICAL),
    ),
    Alert(
        "disk_full", "critical", 10, "A disk is nearly full", "make room: below its floor the node refuses messages",
        f"{DISK_FREE} < {DISK_CRITICAL}", _disk(DISK_CRITICAL, -1.0),
    ),
    Alert(
        "queue_oldest", "warning", 60, "Messages wait for more than ten minutes",
        "`stratamq session list --best oldest_s` shows whose",
        f"max by (instance, node) (stratamq_queue_oldest_seconds) > {OLDEST_S}", _queue_oldest,
    ),
    Alert(
        "queue_full", "warning", 0, "Full queues drop messages",
        "`stratamq drops` and `stratamq session list` show whose",
        f'sum by (instance, node) (increase({DROPS}{{reason="queue_full"}}[5m])) > 0', _queues_full,
    ),
    Alert(
        "store_full", "critical", 0, "A storage node refuses messages for want of disk",
        "make room, or lower storage.message_expiry_max_s", "stratamq_store_full > 0", _store_full,
    ),
    Alert(
        "contradicting_nodes", "critical", 0, "Nodes act by a map or a policy that is no state of the routers' log",
        "`stratamq cluster status` names them, and they read it again by themselves; `message.refused` in their logs "
        "says whether a step was forged, else a router is faulty, or its log was restored",
        f"max({CONTRADICTING}) > 0", _contradicting,
    ),
    Alert(
        "copies_lag", "warning", 60, "A copy in sync is far behind its primary",
        "`stratamq store replicas` shows which; look at its disk and at its load",
        f"stratamq_partition_lag_ops > {LAG_OPS}", _lag,
    ),
    Alert(
        "sync_slow", "warning", 60, "A disk takes more than 0.13 s for one sync in a hundred",
        "look at what else writes there; PUBACKs wait for it",
        f"increase({SLOW_SYNCS}[5m]) > 0.01 * increase({SYNCS}[5m])", _syncs,
    ),
    Alert(
        "loop_stalls", "warning", 0, "A node's loop stood still for more than a second",
        "look at its load and at its log: all its clients waited",
        f"stratamq_turn_longest_seconds > {TURN_S:g}", _turns,
    ),
    Alert(
        "canary_fails", "warning", 0, "An edge's canaries get no answer",
        "`/readyz` of that edge names the shard or the partition that is silent",
        f"increase({CANARIES}[5m]) >= 2", _canaries,
    ),
    Alert(
        "connects_refused", "warning", 60, "Most connects are refused", "`stratamq journal` shows whose, and why",
        f'sum(increase({CONNECTS}{{result="refused"}}[5m])) > {REFUSED_MIN} and '
        f'sum(increase({CONNECTS}{{result="refused"}}[5m])) > sum(increase({CONNECTS}[5m])) / 2', _refused,
    ),
    Alert(
        "unauthenticated_crowd", "warning", 60, "Connections that do not authenticate displace each other",
        "find their addresses at the node (`ss -tn`, `ss -un`) and drop them with a packet filter",
        f'sum by (instance, node, pool) (increase({ADMISSION}{{reason!="silent"}}[5m])) > {DISPLACED_MIN}', _admission,
    ),
    Alert(
        "moves_stalled", "warning", 900, "A rebalance does not go on", "`stratamq ring status` shows what it waits for",
        "max(stratamq_ring_moves_pending) > 0 and max(stratamq_ring_moves_pending) == "
        "max(max_over_time(stratamq_ring_moves_pending[5m]))", _moves,
    ),
    Alert(
        "gossip_disagrees", "warning", 120, "Nodes do not see the same members",
        "`stratamq membership list` shows who misses whom; look at the UDP between them",
        f"max({MEMBERS}) - min({MEMBERS} > 0) > 0", _gossip,
    ),
    Alert(
        "certificate_30_days", "warning", 0, "A certificate ends within 30 days", "make a new one, then reload",
        "stratamq_tls_cert_not_after_seconds - time() < 30 * 86400", _certificates(30, 7),
    ),
    Alert(
        "certificate_7_days", "critical", 0, "A certificate ends within 7 days", "make a new one now, then reload",
        "stratamq_tls_cert_not_after_seconds - time() < 7 * 86400", _certificates(7, -1e9),
    ),
    Alert(
        "open_files", "warning", 60, "A node has nearly all the files open that it may", "raise its limit (ulimit -n)",
        "stratamq_open_files / stratamq_open_files_max > 0.9", _files,
    ),
    Alert(
        "mixed_releases", "warning", DAY_S, "Nodes run different releases", "finish the upgrade",
        "count(count by (version) (stratamq_build_info)) > 1", _mixed,
    ),
    Alert(
        "clock_offset", "warning", 60, "A node's clock differs", "let all nodes follow one time server",
        f"abs({CLOCK} - timestamp({CLOCK})) > {CLOCKS_MS / 1000:g}", _clocks,
    ),
)  # fmt: skip


class ActiveAlert(msgspec.Struct, frozen=True):
    """An alarm that stands."""

    name: str
    severity: str
    about: str
    sentence: str
    do: str
    since_ms: int


class ClearedAlert(msgspec.Struct, frozen=True):
    """An alarm that stood."""

    name: str
    severity: str
    about: str
    sentence: str
    since_ms: int
    ended_at_ms: int


class Alerts:
    """Which alarms stand, and which did."""

    def __init__(self, table: Sequence[Alert] = ALARMS) -> None:
        self._table = table
        self._met: dict[tuple[str, str], int] = {}  # alarm and subject -> since when its condition holds
        self._active: dict[tuple[str, str], ActiveAlert] = {}
        self._past: list[ClearedAlert] = []  # the newest first

    @property
    def active(self) -> list[ActiveAlert]:
        """Return those that stand, the worst and oldest first."""
        return sorted(self._active.values(), key=lambda one: (one.severity != "critical", one.since_ms, one.name))

    @property
    def past(self) -> list[ClearedAlert]:
        """Return those that stood, the newest first."""
        return list(self._past)

    def look(self, sight: ClusterView) -> tuple[list[ActiveAlert], list[ClearedAlert]]:
        """Judge one look; return which alarms began and which ended with it."""
        sight = sight._replace(gauges=_gauges(sight.stats))
        met: dict[tuple[str, str], int] = {}
        began: list[ActiveAlert] = []
        for alarm in self._table:
            for about, figure in alarm.find(sight):
                key = alarm.name, about
                met[key] = self._met.get(key, sight.now_ms)
                if sight.now_ms - met[key] < alarm.for_s * 1000:
                    continue
                sentence = f"{alarm.sentence} ({about}: {figure})"
                before = self._active.get(key)
                now = ActiveAlert(alarm.name, alarm.severity, about, sentence, alarm.do, met[key])
                self._active[key] = now
                if before is None:
                    began.append(now)
        self._met = met
        return began, self._end(met, sight.now_ms)

    def _end(self, met: Mapping[tuple[str, str], int], now_ms: int) -> list[ClearedAlert]:
        ended = []
        for key in [key for key in self._active if key not in met]:
            alarm = self._active.pop(key)
            ended.append(ClearedAlert(alarm.name, alarm.severity, alarm.about, alarm.sentence, alarm.since_ms, now_ms))
        self._past = (ended[::-1] + self._past)[:PAST_MAX]
        return ended
