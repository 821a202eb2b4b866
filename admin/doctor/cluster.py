"""Checks over the rows of a cluster's nodes: one sample, and a second one some seconds later."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from admin.alerts import ClusterView
from admin.doctor.findings import FAIL, SKIPPED, WARN, Check, DoctorFinding, Said, judged
from wire.messages.hello import TIER_EDGE, TIER_ROUTER, TIER_STORAGE
from wire.messages.node_rows import DropRow, ReplicaRow, StatsRow

__all__ = ["CHECKS", "ExaminedCluster", "is_filling", "judge"]

DAY_S = 86_400.0
CLOCKS_MS = 250
SYNC_WARN_S = 0.02
LOOP_WARN_S, LOOP_FAIL_S = 0.25, 1.0
DISK_WARN, DISK_FAIL = 0.2, 0.1
DISK_HOURS_WARN = 6.0  # until it is full, at its current rate
NEAR_FLOOR = 1.5  # factor of the free bytes below which a node refuses messages
GROWTH_MIN_BYTES = 4 * 1024 * 1024  # less is noise of a file system
DROPS_MS = 3_600_000
SKEW = 0.1
LAG_OPS = 10_000
CERTIFICATES = "stratamq_tls_cert_not_after_seconds"
SYNCS = 'stratamq_store_wal_fsync_seconds{quantile="0.99"}'
CORE_DUMPS = "stratamq_core_dumps"
TURNS = "stratamq_turn_longest_seconds"
LOOPBACK = ("127.", "::1", "[::1]", "localhost")


class ExaminedCluster(NamedTuple):
    """Rows of a doctor's queries."""

    sight: ClusterView
    later: Mapping[str, StatsRow] = {}  # by node, ``later_s`` after the first sample
    later_s: float = 0.0
    status: Mapping[str, Any] = {}  # reply of a router to `cluster status`
    replicas: Sequence[ReplicaRow] = ()
    drops: Sequence[DropRow] = ()
    settings: Mapping[str, Mapping[str, str]] = {}  # node -> name -> value


def judge(examined: ExaminedCluster) -> list[DoctorFinding]:
    """Return the findings of every check."""
    return [finding for check in CHECKS for finding in judged(check, examined)]


def _reach(cluster: ExaminedCluster) -> Said:
    for node in cluster.sight.silent:
        yield FAIL, node, "is in the map as alive and does not answer"
    for row in cluster.status.get("nodes", ()):
        gossip, state = row.get("gossip"), row.get("state")
        if state == "unknown":
            yield WARN, row["node"], f"gossip lists it as {gossip}, the map lacks it"
        elif state == "dead":
            yield FAIL, row["node"], "is dead: its lease expired, and it sends no messages"
        elif gossip is not None and gossip != "alive" and state != "left":
            yield WARN, row["node"], f"is {gossip} in gossip and {state} in the map"
    for node, row in cluster.sight.stats.items():
        if row.ready is False and not row.draining:
            yield FAIL, node, "is not ready: " + ", ".join(row.why_not_ready or ["no reason given"])


def _leader(cluster: ExaminedCluster) -> Said:
    if not cluster.sight.leader:
        yield FAIL, "routers", "have no leader"
    routers = len(cluster.sight.map.live(TIER_ROUTER))
    if routers and routers % 2 == 0:
        yield WARN, "routers", f"{routers} are alive: they tolerate no more failures than {routers - 1}"


def _primaries(cluster: ExaminedCluster) -> Said:
    numbers = [number for number, entry in enumerate(cluster.sight.map.partitions) if not entry.primary]
    if numbers:
        yield FAIL, "partitions", f"{len(numbers)} of {len(cluster.sight.map.partitions)} have no primary"
    shards = [number for number, shard in enumerate(cluster.sight.map.shards) if not shard.owner]
    if shards:
        yield FAIL, "shards", f"{len(shards)} of {len(cluster.sight.map.shards)} have no owner"


def _copies(cluster: ExaminedCluster) -> Said:
    cluster_map = cluster.sight.map
    short = sum(
        bool(entry.primary) and len(cluster_map.live_in_sync(entry)) < cluster_map.replicas
        for entry in cluster_map.partitions
    )
    if short:
        yield WARN, "partitions", f"{short} have fewer than {cluster_map.replicas} copies in sync"
    elif cluster_map.replicas < 2 and cluster_map.partitions:
        yield WARN, "partitions", "one copy each: the loss of a disk loses sessions"
    for row in cluster.replicas:
        if (row.lag_ops or 0) >= LAG_OPS:
            yield WARN, f"partition {row.partition}", f"its slowest copy is {row.lag_ops} operations behind on disk"
    zones = {entry.zone for entry in cluster_map.live(TIER_STORAGE)}
    if "" not in zones and 1 < len(zones) < cluster_map.replicas:
        yield WARN, "zones", f"{len(zones)} zones are too few for {cluster_map.replicas} copies in different zones"


def _skew(cluster: ExaminedCluster) -> Said:
    cluster_map = cluster.sight.map
    nodes = {entry.node: entry.weight or 1 for entry in cluster_map.live(TIER_STORAGE) if not entry.admin_state}
    whole = sum(nodes.values())
    primaries = Counter(entry.primary for entry in cluster_map.partitions if entry.primary)
    for node, weight in nodes.items() if whole and cluster_map.partitions else ():
        share = len(cluster_map.partitions) * weight / whole
        if abs(primaries[node] - share) > max(1.0, share * SKEW):
            yield WARN, node, f"serves {primaries[node]} partitions, {share:.1f} according to its weight"


def _leases(cluster: ExaminedCluster) -> Said:
    whole = cluster.sight.map.lease_s
    for node, row in cluster.sight.stats.items():
        if row.lease_left_s is not None and row.lease_left_s < whole / 2:
            state = FAIL if row.lease_left_s <= 0 else WARN
            yield state, node, f"its lease has {row.lease_left_s:.2f} s left of {whole:g}"


def _certificates(cluster: ExaminedCluster) -> Said:
    for node, row in cluster.sight.stats.items():
        for key, end in (row.gauges or {}).items():
            days = (end - cluster.sight.now_ms / 1000) / DAY_S
            if key.startswith(CERTIFICATES) and days < 30:
                name = key.removeprefix(CERTIFICATES).strip("{}") or "certificate"
                text = f"has {days:.1f} days left" if days > 0 else "has expired"
                yield FAIL if days < 7 else WARN, node, f"{name} {text}"


def _clocks(cluster: ExaminedCluster) -> Said:
    for node, offset in cluster.sight.offsets_ms.items():
        if abs(offset) >= CLOCKS_MS:
            yield WARN, node, f"its clock is {offset:+.0f} ms from this host's"


def _releases(cluster: ExaminedCluster) -> Said:
    found = Counter(row.version for row in cluster.sight.stats.values() if row.version)
    if len(found) > 1:
        yield WARN, "nodes", ", ".join(f"{count} run {version}" for version, count in sorted(found.items()))


def _open_files(cluster: ExaminedCluster) -> Said:
    for node, row in cluster.sight.stats.items():
        if row.open_files_max is None:
            continue
        wanted = cluster.settings.get(node, {}).get("edge.connections_max", "")
        if wanted.isdecimal() and int(wanted) >= row.open_files_max:
            yield WARN, node, f"may open {row.open_files_max} files, edge.connections_max is {wanted}"
        if row.open_files is not None and row.open_files > 0.9 * row.open_files_max:
            yield FAIL, node, f"has {row.open_files} of {row.open_files_max} files open"


def _core_dumps(cluster: ExaminedCluster) -> Said:
    for node, row in cluster.sight.stats.items():
        if (row.gauges or {}).get(CORE_DUMPS):
            yield WARN, node, "a core dump would write its memory to a disk: keys, passwords, payloads"


def _disks(cluster: ExaminedCluster) -> Said:
    for node, row in cluster.sight.stats.items():
        if row.disk_free_bytes is None or not row.disk_bytes:
            continue
        free = row.disk_free_bytes / row.disk_bytes
        if free < DISK_WARN:
            yield FAIL if free < DISK_FAIL else WARN, node, f"{free:.0%} of its disk is free"
        after = cluster.later.get(node)
        if after is not None and is_filling(row, after, cluster.later_s):
            grown, left = row.disk_free_bytes - (after.disk_free_bytes or 0), after.disk_free_bytes or 0
            hours = left / grown * cluster.later_s / 3600
            loss = f"its disk lost {grown / 2**20:.0f} MiB in {cluster.later_s:.0f} s"
            yield WARN, node, f"{loss}: full in {hours:.1f} h at this rate (`--over 60` measures longer)"
    for node, row in cluster.sight.stats.items():
        floor, free_bytes = _floor(cluster.settings.get(node, {}), row.disk_bytes or 0), row.disk_free_bytes
        if (row.gauges or {}).get("stratamq_store_full"):
            yield FAIL, node, "refuses messages: its free disk space is below the minimum"
        elif free_bytes is not None and free_bytes < NEAR_FLOOR * floor:
            yield WARN, node, f"{free_bytes / 2**20:.0f} MiB are free, below {floor / 2**20:.0f} it refuses messages"


def _floor(settings: Mapping[str, str], disk_bytes: int) -> float:
    """Return the free bytes below which a node refuses messages; 0 if it stores none."""
    try:
        least = float(settings["storage.free_space_floor_bytes"])
        return max(least, disk_bytes * float(settings["storage.free_space_floor_percent"]) / 100)
    except (KeyError, ValueError):
        return 0.0


def is_filling(before: StatsRow, after: StatsRow | None, over_s: float) -> bool:
    """Return whether a disk would be full within hours, from two samples."""
    if after is None or before.disk_free_bytes is None or after.disk_free_bytes is None or not over_s:
        return False
    grown = before.disk_free_bytes - after.disk_free_bytes
    return grown > GROWTH_MIN_BYTES and after.disk_free_bytes * over_s < DISK_HOURS_WARN * 3600 * grown


def _syncs(cluster: ExaminedCluster) -> Said:
    for node, row in cluster.sight.stats.items():
        value = (row.gauges or {}).get(SYNCS, 0.0)
        if value > SYNC_WARN_S:
            yield WARN, node, f"99 % of its syncs take up to {value * 1000:.0f} ms"


def _loops(cluster: ExaminedCluster) -> Said:
    for node, row in cluster.sight.stats.items():
        value = (row.gauges or {}).get(TURNS, 0.0)
        if value >= LOOP_WARN_S:
            state = FAIL if value >= LOOP_FAIL_S else WARN
            yield (
                state,
                node,
                (
                    f"its longest event-loop iteration of the last minute took {value:.2f} s: all its clients were "
                    "delayed"
                ),
            )


def _drops(cluster: ExaminedCluster) -> Said:
    for row in cluster.drops:
        ago_ms = cluster.sight.now_ms - (row.last_at_ms or 0)
        if row.count and ago_ms <= DROPS_MS:
            yield WARN, row.node or "", f"{row.reason}: {row.count} since it began, the last {ago_ms // 60_000} min ago"


def _damage(cluster: ExaminedCluster) -> Said:
    aside = cluster.status.get("stores_aside")
    if aside is None:
        yield SKIPPED, "", "no leader reports the number of quarantined stores"
    elif aside:
        yield WARN, "storage", f"{aside} damaged stores are quarantined"


def _anonymous(cluster: ExaminedCluster) -> Said:
    if not cluster.settings:
        yield SKIPPED, "", "no node reports its settings"
    for node, settings in cluster.settings.items():
        for name, value in settings.items():
            table, _, last = name.rpartition(".")
            if last != "allow_anonymous" or value != "true":
                continue
            bound = settings.get(f"{table}.bind", "")
            if not bound.startswith(LOOPBACK):
                yield WARN, node, f"{table} allows anonymous clients, bound to {bound}"


def _queues(cluster: ExaminedCluster) -> Said:
    for node, row in cluster.sight.stats.items():
        if (row.queue_oldest_s or 0.0) >= 600:
            yield WARN, node, f"the oldest message is queued for {row.queue_oldest_s:.0f} s"
        for key, value in _named(row, "stratamq_queue_fullest_ratio"):
            if value >= 0.9:
                yield WARN, node, f"its fullest queue is filled to {value:.0%} {key}".rstrip()


def _named(row: StatsRow, name: str) -> Iterator[tuple[str, float]]:
    for key, value in (row.gauges or {}).items():
        if key.partition("{")[0] == name:
            yield key.removeprefix(name), value


def _edges(cluster: ExaminedCluster) -> Said:
    if not cluster.sight.map.live(TIER_EDGE):
        yield WARN, "edges", "no edge is alive: clients cannot connect"


CHECKS = (
    Check("reachability", "every node answers", "start it, or remove it with `stratamq cluster forget NODE`", _reach),
    Check("leader", "the routers have a leader", "run one, three or five routers", _leader),
    Check(
        "primaries", "every partition and shard is served",
        "start the storage nodes that have copies; `stratamq ring lost all` names them", _primaries,
    ),
    Check("copies", "every partition has its copies", "start or add storage nodes; `store replicas`", _copies),
    Check("ring skew", "partitions are balanced", "`stratamq ring rebalance --dry-run` shows the moves", _skew),
    Check("leases", "leases are renewed in time", "check the load, and the network between node and routers", _leases),
    Check("edges", "edges are alive", "start an edge", _edges),
    Check("node certificates", "30 days left or more", "issue a new one, then `stratamq reload NODE`", _certificates),
    Check("clocks", f"within {CLOCKS_MS} ms", "synchronize all nodes with one time server", _clocks),
    Check("releases", "all nodes run one release", "finish the upgrade", _releases),
    Check("open files", "below the limits", "raise the node's limit (ulimit -n, LimitNOFILE)", _open_files),
    Check(
        "core dumps", "core dumps are disabled",
        "start it with a hard limit that is not 0 (ulimit -H -c 1, LimitCORE=1); `prlimit --core=1: --pid PID` now",
        _core_dumps,
    ),
    Check("disks", "enough space is free", "free disk space, add nodes, or lower storage.message_expiry_max_s", _disks),
    Check("syncs", f"99 % take {SYNC_WARN_S * 1000:g} ms at most", "use a faster disk for node.data_dir", _syncs),
    Check(
        "loop lag", f"no event-loop iteration of {LOOP_WARN_S:g} s",
        "give the node its own core, or distribute its load", _loops,
    ),
    Check("drops", "none in the last hour", "find the clients with `stratamq drops` and `stratamq journal`", _drops),
    Check(
        "queues", "none is old or nearly full",
        "find the sessions with `stratamq session list --best oldest_s`", _queues,
    ),
    Check("damage", "no store is quarantined", "`stratamq store aside` lists them", _damage),
    Check(
        "anonymous listeners", "none except on loopback",
        "set allow_anonymous = false on the listener and give clients credentials", _anonymous,
    ),
)  # fmt: skip
