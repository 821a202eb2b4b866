"""Checks over what the nodes of a cluster said in one look, and in a second one some seconds later."""

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
DISK_HOURS_WARN = 6.0  # until it is full, as fast as it fills now
NEAR_FLOOR = 1.5  # of the free bytes below which a node refuses messages
GROWTH_MIN_BYTES = 4 * 1024 * 1024  # less in some seconds is the noise of a file system
DROPS_MS = 3_600_000
SKEW = 0.1
LAG_OPS = 10_000
CERTIFICATES = "stratamq_tls_cert_not_after_seconds"
SYNCS = 'stratamq_store_wal_fsync_seconds{quantile="0.99"}'
CORE_DUMPS = "stratamq_core_dumps"
TURNS = "stratamq_turn_longest_seconds"
LOOPBACK = ("127.", "::1", "[::1]", "localhost")


class ExaminedCluster(NamedTuple):
    """The findings of a doctor's questions."""

    sight: ClusterView
    later: Mapping[str, StatsRow] = {}  # by node, ``later_s`` after the first look
    later_s: float = 0.0
    status: Mapping[str, Any] = {}  # what a router answers to `cluster status`
    replicas: Sequence[ReplicaRow] = ()
    drops: Sequence[DropRow] = ()
    settings: Mapping[str, Mapping[str, str]] = {}  # node -> name -> value


def judge(examined: ExaminedCluster) -> list[DoctorFinding]:
    """Return what every check finds."""
    return [finding for check in CHECKS for finding in judged(check, examined)]


def _reach(seen: ExaminedCluster) -> Said:
    for node in seen.sight.silent:
        yield FAIL, node, "is in the map as alive and does not answer"
    for row in seen.status.get("nodes", ()):
        gossip, state = row.get("gossip"), row.get("state")
        if state == "unknown":
            yield WARN, row["node"], f"gossip knows it as {gossip}, the map does not"
        elif state == "dead":
            yield FAIL, row["node"], "is dead: its lease ended and nobody hears it"
        elif gossip is not None and gossip != "alive" and state != "left":
            yield WARN, row["node"], f"gossip says {gossip}, the map says {state}"
    for node, row in seen.sight.stats.items():
        if row.ready is False and not row.draining:
            yield FAIL, node, "is not ready: " + ", ".join(row.why_not_ready or ["it does not say why"])


def _leader(seen: ExaminedCluster) -> Said:
    if not seen.sight.leader:
        yield FAIL, "routers", "none leads"
    routers = len(seen.sight.map.live(TIER_ROUTER))
    if routers and routers % 2 == 0:
        yield WARN, "routers", f"{routers} are alive: as many may be lost as with {routers - 1}"


def _primaries(seen: ExaminedCluster) -> Said:
    numbers = [number for number, entry in enumerate(seen.sight.map.partitions) if not entry.primary]
    if numbers:
        yield FAIL, "partitions", f"{len(numbers)} of {len(seen.sight.map.partitions)} have no primary"
    shards = [number for number, shard in enumerate(seen.sight.map.shards) if not shard.owner]
    if shards:
        yield FAIL, "shards", f"{len(shards)} of {len(seen.sight.map.shards)} have no owner"


def _copies(seen: ExaminedCluster) -> Said:
    cluster_map = seen.sight.map
    short = sum(
        bool(entry.primary) and len(cluster_map.live_in_sync(entry)) < cluster_map.replicas
        for entry in cluster_map.partitions
    )
    if short:
        yield WARN, "partitions", f"{short} have fewer than {cluster_map.replicas} copies in sync"
    elif cluster_map.replicas < 2 and cluster_map.partitions:
        yield WARN, "partitions", "one copy each: a disk that is lost loses sessions"
    for row in seen.replicas:
        if (row.lag_ops or 0) >= LAG_OPS:
            yield WARN, f"partition {row.partition}", f"its slowest copy lacks {row.lag_ops} operations on its disk"
    zones = {entry.zone for entry in cluster_map.live(TIER_STORAGE)}
    if "" not in zones and 1 < len(zones) < cluster_map.replicas:
        yield WARN, "zones", f"{len(zones)} zones cannot hold {cluster_map.replicas} copies apart"


def _skew(seen: ExaminedCluster) -> Said:
    cluster_map = seen.sight.map
    nodes = {entry.node: entry.weight or 1 for entry in cluster_map.live(TIER_STORAGE) if not entry.admin_state}
    whole = sum(nodes.values())
    primaries = Counter(entry.primary for entry in cluster_map.partitions if entry.primary)
    for node, weight in nodes.items() if whole and cluster_map.partitions else ():
        share = len(cluster_map.partitions) * weight / whole
        if abs(primaries[node] - share) > max(1.0, share * SKEW):
            yield WARN, node, f"serves {primaries[node]} partitions, {share:.1f} by its weight"


def _leases(seen: ExaminedCluster) -> Said:
    whole = seen.sight.map.lease_s
    for node, row in seen.sight.stats.items():
        if row.lease_left_s is not None and row.lease_left_s < whole / 2:
            state = FAIL if row.lease_left_s <= 0 else WARN
            yield state, node, f"its lease has {row.lease_left_s:.2f} s left of {whole:g}"


def _certificates(seen: ExaminedCluster) -> Said:
    for node, row in seen.sight.stats.items():
        for key, end in (row.gauges or {}).items():
            days = (end - seen.sight.now_ms / 1000) / DAY_S
            if key.startswith(CERTIFICATES) and days < 30:
                name = key.removeprefix(CERTIFICATES).strip("{}") or "certificate"
                said = f"has {days:.1f} days left" if days > 0 else "has ended"
                yield FAIL if days < 7 else WARN, node, f"{name} {said}"


def _clocks(seen: ExaminedCluster) -> Said:
    for node, offset in seen.sight.offsets_ms.items():
        if abs(offset) >= CLOCKS_MS:
            yield WARN, node, f"its clock is {offset:+.0f} ms from this host's"


def _releases(seen: ExaminedCluster) -> Said:
    found = Counter(row.version for row in seen.sight.stats.values() if row.version)
    if len(found) > 1:
        yield WARN, "nodes", ", ".join(f"{count} run {version}" for version, count in sorted(found.items()))


def _open_files(seen: ExaminedCluster) -> Said:
    for node, row in seen.sight.stats.items():
        if row.open_files_max is None:
            continue
        wanted = seen.settings.get(node, {}).get("edge.connections_max", "")
        if wanted.isdecimal() and int(wanted) >= row.open_files_max:
            yield WARN, node, f"may open {row.open_files_max} files, edge.connections_max is {wanted}"
        if row.open_files is not None and row.open_files > 0.9 * row.open_files_max:
            yield FAIL, node, f"has {row.open_files} of {row.open_files_max} files open"


def _core_dumps(seen: ExaminedCluster) -> Said:
    for node, row in seen.sight.stats.items():
        if (row.gauges or {}).get(CORE_DUMPS):
            yield WARN, node, "a crash would leave its memory on a disk: keys, passwords, payloads"


def _disks(seen: ExaminedCluster) -> Said:
    for node, row in seen.sight.stats.items():
        if row.disk_free_bytes is None or not row.disk_bytes:
            continue
        free = row.disk_free_bytes / row.disk_bytes
        if free < DISK_WARN:
            yield FAIL if free < DISK_FAIL else WARN, node, f"{free:.0%} of its disk is free"
        after = seen.later.get(node)
        if after is not None and is_filling(row, after, seen.later_s):
            grown, left = row.disk_free_bytes - (after.disk_free_bytes or 0), after.disk_free_bytes or 0
            hours = left / grown * seen.later_s / 3600
            seen_for = f"its disk lost {grown / 2**20:.0f} MiB in the {seen.later_s:.0f} s of this look"
            yield WARN, node, f"{seen_for}: full in {hours:.1f} h if that goes on (`--over 60` looks longer)"
    for node, row in seen.sight.stats.items():
        floor, room = _floor(seen.settings.get(node, {}), row.disk_bytes or 0), row.disk_free_bytes
        if (row.gauges or {}).get("stratamq_store_full"):
            yield FAIL, node, "refuses messages: its disk is below the floor"
        elif room is not None and room < NEAR_FLOOR * floor:
            yield WARN, node, f"{room / 2**20:.0f} MiB are free, below {floor / 2**20:.0f} it refuses messages"


def _floor(settings: Mapping[str, str], disk_bytes: int) -> float:
    """Return the free bytes below which a node refuses messages; 0 of one that stores none."""
    try:
        least = float(settings["storage.free_space_floor_bytes"])
        return max(least, disk_bytes * float(settings["storage.free_space_floor_percent"]) / 100)
    except (KeyError, ValueError):
        return 0.0


def is_filling(before: StatsRow, after: StatsRow | None, over_s: float) -> bool:
    """Return whether a disk would be full within hours if it went on as between two looks."""
    if after is None or before.disk_free_bytes is None or after.disk_free_bytes is None or not over_s:
        return False
    grown = before.disk_free_bytes - after.disk_free_bytes
    return grown > GROWTH_MIN_BYTES and after.disk_free_bytes * over_s < DISK_HOURS_WARN * 3600 * grown


def _syncs(seen: ExaminedCluster) -> Said:
    for node, row in seen.sight.stats.items():
        value = (row.gauges or {}).get(SYNCS, 0.0)
        if value > SYNC_WARN_S:
            yield WARN, node, f"99 % of its syncs take up to {value * 1000:.0f} ms"


def _loops(seen: ExaminedCluster) -> Said:
    for node, row in seen.sight.stats.items():
        value = (row.gauges or {}).get(TURNS, 0.0)
        if value >= LOOP_WARN_S:
            state = FAIL if value >= LOOP_FAIL_S else WARN
            yield state, node, f"its longest turn of the last minute took {value:.2f} s: everything waited for it"


def _drops(seen: ExaminedCluster) -> Said:
    for row in seen.drops:
        ago_ms = seen.sight.now_ms - (row.last_at_ms or 0)
        if row.count and ago_ms <= DROPS_MS:
            yield WARN, row.node or "", f"{row.reason}: {row.count} since it began, the last {ago_ms // 60_000} min ago"


def _damage(seen: ExaminedCluster) -> Said:
    aside = seen.status.get("stores_aside")
    if aside is None:
        yield SKIPPED, "", "no leader says how many stores were put aside"
    elif aside:
        yield WARN, "storage", f"{aside} damaged stores were put aside and are kept"


def _anonymous(seen: ExaminedCluster) -> Said:
    if not seen.settings:
        yield SKIPPED, "", "no node tells its settings"
    for node, settings in seen.settings.items():
        for name, value in settings.items():
            table, _, last = name.rpartition(".")
            if last != "allow_anonymous" or value != "true":
                continue
            bound = settings.get(f"{table}.bind", "")
            if not bound.startswith(LOOPBACK):
                yield WARN, node, f"{table} lets anybody in without a name, bound to {bound}"


def _queues(seen: ExaminedCluster) -> Said:
    for node, row in seen.sight.stats.items():
        if (row.queue_oldest_s or 0.0) >= 600:
            yield WARN, node, f"the oldest queued message waits for {row.queue_oldest_s:.0f} s"
        for key, value in _named(row, "stratamq_queue_fullest_ratio"):
            if value >= 0.9:
                yield WARN, node, f"its fullest queue is filled to {value:.0%} {key}".rstrip()


def _named(row: StatsRow, name: str) -> Iterator[tuple[str, float]]:
    for key, value in (row.gauges or {}).items():
        if key.partition("{")[0] == name:
            yield key.removeprefix(name), value


def _edges(seen: ExaminedCluster) -> Said:
    if not seen.sight.map.live(TIER_EDGE):
        yield WARN, "edges", "none is alive: no client can connect"


CHECKS = (
    Check("reachability", "every node answers", "start it, or `stratamq cluster forget NODE` for good", _reach),
    Check("leader", "one router leads", "run one, three or five routers", _leader),
    Check(
        "primaries", "every partition and shard is served",
        "start the storage nodes that have copies; `stratamq ring lost all` names them", _primaries,
    ),
    Check("copies", "every partition has its copies", "start or add storage nodes; `store replicas`", _copies),
    Check("ring skew", "partitions are even", "`stratamq ring rebalance --dry-run` shows the moves", _skew),
    Check("leases", "leases are renewed in time", "look at load and at the net between node and routers", _leases),
    Check("edges", "edges are there", "start an edge", _edges),
    Check("node certificates", "30 days left or more", "make a new one, then `stratamq reload NODE`", _certificates),
    Check("clocks", f"within {CLOCKS_MS} ms", "let all nodes follow one time server", _clocks),
    Check("releases", "all nodes run one release", "finish the upgrade", _releases),
    Check("open files", "below the limits", "raise the node's limit (ulimit -n, LimitNOFILE)", _open_files),
    Check(
        "core dumps", "no crash leaves memory behind",
        "start it with a hard limit that is not 0 (ulimit -H -c 1, LimitCORE=1); `prlimit --core=1: --pid PID` now",
        _core_dumps,
    ),
    Check("disks", "room is left", "make room, add nodes, or lower storage.message_expiry_max_s", _disks),
    Check("syncs", f"99 % take {SYNC_WARN_S * 1000:g} ms at most", "use a faster disk for node.data_dir", _syncs),
    Check("loop lag", f"no turn of {LOOP_WARN_S:g} s", "give the node a core, or spread its load", _loops),
    Check("drops", "none in the last hour", "`stratamq drops` and `stratamq journal` say whose", _drops),
    Check("queues", "none is old or full", "`stratamq session list --best oldest_s` shows whose", _queues),
    Check("damage", "no store was put aside", "`stratamq store aside` shows them", _damage),
    Check(
        "anonymous listeners", "none beyond loopback",
        "set allow_anonymous = false there and give clients names", _anonymous,
    ),
)  # fmt: skip
