"""Queries that every node answers alike: its metrics, its settings, and the last lines of its log."""

import time
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any, NamedTuple

from pydantic import BaseModel

from conf.logs import KeptLine, KeptLines, kept_lines
from conf.secret_names import setting_text
from wire.clock import boot_time
from wire.messages.hello import TIER_EDGE, TIER_STORAGE
from wire.node.host_figures import disk_bytes, disk_free_bytes, open_files, open_files_max, resident_bytes
from wire.node.process import NodeProcess, own_version
from wire.queries.journal import Journal
from wire.queries.pace import Clocks
from wire.queries.query_server import QueryServer
from wire.queries.source import Columns, Place, RowScan, RowSource

__all__ = ["show_process", "stats_columns"]

DEFAULT = "default"  # the source of an unset setting
UNSET = object()
PACKAGES = ("node", "membership", "metrics", "logs")  # besides the tier's own


class Setting(NamedTuple):
    """One setting in effect."""

    name: str
    value: object
    source: str
    default: object


def show_process(desk: QueryServer, process: NodeProcess, journal: Journal) -> None:
    """Set the process's clocks in a query server and journal, and add the process's resources and a metric."""
    # An edge's rows are in memory: a query uses no time while another process has the core. Other tiers read disks.
    work = time.thread_time if process.tier == TIER_EDGE else time.perf_counter
    desk.set_clocks(Clocks(work, time.thread_time), _utc_us)
    journal.utc_ms = _utc_ms
    process.metrics.counter(
        "journal_left_out_total",
        "Entries of the journal suppressed by a limit per second or iteration.",
        lambda: float(journal.left_out()),
    )
    for what, source in _sources(process).items():
        desk.show(what, source)


def _utc_ms() -> int:
    return time.time_ns() // 1_000_000


def _utc_us() -> int:
    return time.time_ns() // 1_000


def _sources(process: NodeProcess) -> dict[str, RowSource]:
    kept = kept_lines()
    node = process.config.node.id
    return {
        "stats": RowSource(lambda _: iter([(1, process)]), stats_columns()),
        "config": RowSource(lambda scan: _settings(process, scan), _setting_columns(process)),
        "log": RowSource(lambda scan: _lines(kept, scan), _line_columns(node), newest=lambda _: kept.number),
    }


# --- metrics


def stats_columns() -> Columns:
    """Return the columns of StatsRow; None where the node's tier has no such metric."""
    return {
        "node": lambda process: process.config.node.id,
        "tier": lambda process: process.tier,
        "version": lambda _: own_version(),
        "incarnation": lambda process: process.folder.incarnation,
        "started_at_ms": lambda process: process.folder.incarnation,
        "at_ms": lambda _: time.time_ns() // 1_000_000,
        "boot_ms": lambda _: int(boot_time() * 1000),
        "map_epoch": lambda process: process.lease.map.epoch if process.lease is not None else None,
        "lease_left_s": _lease_left_s,
        "ready": lambda process: process.is_ready,
        "why_not_ready": lambda process: [name for name, held in process.metrics.readiness().items() if not held],
        "draining": lambda process: process.drains,
        "zone": lambda process: process.config.node.zone,
        "metrics": _page,
        "connections": lambda process: _sum(process, "clients"),
        "sessions": lambda process: _sum(process, "sessions"),
        "partitions": lambda process: _sum(process, "partitions_primary"),
        "copies": _copies,
        "queue_oldest_s": lambda process: max(process.metrics.values_of("queue_oldest_seconds"), default=None),
        "tls_not_after_ms": _ends_ms,
        "rss_bytes": lambda _: resident_bytes(),
        "cpu_s": lambda _: round(time.process_time(), 3),
        "open_files": lambda _: open_files(),
        "open_files_max": lambda _: open_files_max(),
        "disk_free_bytes": lambda process: disk_free_bytes(process.folder.path),
        "disk_bytes": lambda process: disk_bytes(process.folder.path),
        "counters": lambda process: process.metrics.values("counter"),
        "gauges": lambda process: process.metrics.values("gauge") | process.metrics.slowest(),
    }


def _page(process: NodeProcess) -> str | None:
    """Return the reachable host:port of the metrics page; if bound to all addresses, with the links' host."""
    if process.page is None:
        return None
    host, port = process.page
    if ip_address(host).is_unspecified:
        own = process.lease.map.nodes.get(process.config.node.id) if process.lease is not None else None
        if own is None:
            return None
        host = own.address.rpartition(":")[0].strip("[]")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _sum(process: NodeProcess, family: str) -> int | None:
    """Return the sum of a metric family, None where the node has no such family."""
    values = process.metrics.values_of(family)
    return int(sum(values)) if values else None


def _copies(process: NodeProcess) -> int | None:
    """Return the number of partitions of which a storage node has a copy in sync, by the map."""
    if process.lease is None or process.tier != TIER_STORAGE:
        return None
    return sum(process.config.node.id in placement.in_sync for placement in process.lease.map.partitions)


def _ends_ms(process: NodeProcess) -> int | None:
    """Return when the node's first certificate expires."""
    ends = process.metrics.values_of("tls_cert_not_after_seconds")
    return int(min(ends) * 1000) if ends else None


def _lease_left_s(process: NodeProcess) -> float | None:
    if process.lease is None:
        return None
    return round(max(0.0, process.lease.lease_until - boot_time()), 3)


# --- settings


def _settings(process: NodeProcess, scan: RowScan) -> Iterator[tuple[Place, Any]]:
    (after,) = scan.numbers(1)
    for place, setting in enumerate(_all_settings(process), 1):
        if place > after:
            yield place, setting


def _all_settings(process: NodeProcess) -> Iterator[Setting]:
    sources = process.config.sources
    for package in (process.tier, *PACKAGES):
        model = getattr(process.config, package, None)
        for key, value in model or ():
            if isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
                for item in value:
                    table = f"{package}.{key}.{getattr(item, 'name', '')}"
                    for inner, one in item:
                        name = f"{table}.{inner}"
                        yield Setting(name, one, sources.get(name, DEFAULT), _default(item, inner))
            else:
                name = f"{package}.{key}"
                yield Setting(name, value, sources.get(name, DEFAULT), _default(model, key))


def _default(model: BaseModel | None, key: str) -> object:
    """Return the default of a setting, UNSET if it is required."""
    field = type(model).model_fields.get(key) if model is not None else None
    if field is None or field.is_required():
        return UNSET
    return field.get_default(call_default_factory=True, validated_data={})


def _setting_columns(process: NodeProcess) -> Columns:
    takes: dict[str, bool] = {}  # parts are added only at the start

    def needs_restart(setting: Setting) -> bool:
        if setting.name not in takes:
            takes[setting.name] = process.reload.takes(setting.name)
        return not takes[setting.name]

    return {
        "node": lambda _: process.config.node.id,
        "name": lambda setting: setting.name,
        "value": lambda setting: setting_text(setting.name, setting.value),
        "source": lambda setting: setting.source,
        "default": lambda setting: (
            None
            if setting.source == DEFAULT or setting.default is UNSET
            else setting_text(setting.name, setting.default)
        ),
        "needs_restart": needs_restart,
    }


# --- log


def _lines(kept: KeptLines, scan: RowScan) -> Iterator[tuple[Place, Any]]:
    (after,) = scan.numbers(1)
    for line in list(kept.lines):
        if line.number > after:
            yield line.number, line


def _line_columns(node: str) -> Columns:
    def fields(line: KeptLine) -> dict[str, str]:
        return {name: str(value) for name, value in line.fields.items()}

    return {
        "number": lambda line: line.number,
        "at_ms": lambda line: line.at_ms,
        "node": lambda _: node,
        "level": lambda line: line.level,
        "event": lambda line: line.event,
        "logger": lambda line: line.logger,
        "message": lambda line: line.message,
        "fields": fields,
    }
