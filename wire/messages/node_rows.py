"""Rows of queries about nodes: metrics, copies, consensus, logs, settings, journals and traces.

A field is None if the answering node does not know it. Times are UTC in milliseconds by that node's clock.
"""

import msgspec

__all__ = [
    "ConfigRow",
    "DropRow",
    "JournalRow",
    "LogLineRow",
    "RaftRow",
    "ReplicaRow",
    "SlowSubscriberRow",
    "StatsRow",
    "TraceEventRow",
    "TraceRow",
]


class StatsRow(msgspec.Struct, omit_defaults=True):
    """Metrics of one node: all counters of its metrics page, by the name and labels of the family there."""

    node: str | None = None
    tier: str | None = None
    version: str | None = None
    incarnation: int | None = None
    started_at_ms: int | None = None
    at_ms: int | None = None
    boot_ms: int | None = None  # the node's boot clock, for offsets
    map_epoch: int | None = None
    lease_left_s: float | None = None
    ready: bool | None = None
    why_not_ready: list[str] | None = None
    draining: bool | None = None
    zone: str | None = None
    metrics: str | None = None  # host:port of its metrics page
    connections: int | None = None
    sessions: int | None = None
    partitions: int | None = None  # with this node as primary
    copies: int | None = None
    rss_bytes: int | None = None
    cpu_s: float | None = None
    open_files: int | None = None
    open_files_max: int | None = None
    disk_free_bytes: int | None = None
    disk_bytes: int | None = None
    tls_not_after_ms: int | None = None
    queue_oldest_s: float | None = None
    counters: dict[str, float] | None = None  # name{label="value"}: value; never falls
    gauges: dict[str, float] | None = None


class RaftRow(msgspec.Struct, omit_defaults=True):
    """Raft state of one router."""

    node: str | None = None
    state: str | None = None  # "leader", "follower", "candidate", "learner"
    term: int | None = None
    leader: str | None = None
    voted_for: str | None = None
    last_index: int | None = None
    commit_index: int | None = None
    applied_index: int | None = None
    snapshot_index: int | None = None
    voters: list[str] | None = None
    learners: list[str] | None = None
    match: dict[str, int] | None = None  # at the leader: match_index of each peer
    heard_ms: dict[str, int] | None = None  # at the leader: time since each peer's last message
    leases: dict[str, float] | None = None  # at the leader: seconds left, by node
    epochs: dict[str, int] | None = None  # at the leader: acknowledged map epoch of each node
    shards: list[int] | None = None  # owned by this router


class ReplicaRow(msgspec.Struct, omit_defaults=True):
    """A partition's copy at a storage node."""

    partition: int | None = None
    node: str | None = None
    role: str | None = None  # "primary", "backup", "catching_up", "loading", "waiting"
    primary: str | None = None
    epoch: int | None = None
    op_index: int | None = None
    commit_index: int | None = None
    synced: dict[str, int] | None = None  # at the primary: synced op_index of each copy
    in_sync: list[str] | None = None
    lag_ops: int | None = None
    sessions: int | None = None
    connected: int | None = None
    queued: int | None = None
    retained: int | None = None
    queue_oldest_s: float | None = None
    acknowledges: bool | None = None
    transferring: bool | None = None
    log_start: int | None = None


class SlowSubscriberRow(msgspec.Struct, omit_defaults=True):
    """A slow client, with the value by which it was selected."""

    client_id: str | None = None
    node: str | None = None
    by: str | None = None  # "ack", "unsent", "window", "age", "queued"
    value: float | None = None
    unit: str | None = None  # "s", "bytes", "ratio", "messages"
    since_ms: int | None = None
    session: int | None = None
    partition: int | None = None
    number: int | None = None


class DropRow(msgspec.Struct, omit_defaults=True):
    """Messages dropped for one reason since the node started."""

    node: str | None = None
    reason: str | None = None
    count: int | None = None
    last_at_ms: int | None = None
    last_client_id: str | None = None
    last_topic: str | None = None


class JournalRow(msgspec.Struct, omit_defaults=True):
    """An entry of a node's journal, without payload."""

    number: int | None = None
    at_ms: int | None = None
    node: str | None = None
    event: str | None = None  # "drop", "refused", "kicked", "takeover", "will", "session_end", "purge", ...
    reason: str | None = None
    client_id: str | None = None
    topic: str | None = None
    origin: str | None = None
    detail: str | None = None
    left_out: int | None = None  # entries suppressed before it


class LogLineRow(msgspec.Struct, omit_defaults=True):
    """A line of a node's log."""

    number: int | None = None
    at_ms: int | None = None
    node: str | None = None
    level: str | None = None
    event: str | None = None
    logger: str | None = None
    message: str | None = None
    fields: dict[str, str] | None = None


class ConfigRow(msgspec.Struct, omit_defaults=True):
    """A setting of a node; secrets are shown as ``***``."""

    node: str | None = None
    name: str | None = None
    value: str | None = None
    source: str | None = None  # "default", the file, the variable, the flag
    default: str | None = None
    needs_restart: bool | None = None


class TraceRow(msgspec.Struct, omit_defaults=True):
    """A trace of a node."""

    trace: str | None = None
    node: str | None = None
    kind: str | None = None
    pattern: str | None = None
    state: str | None = None  # "running", "time", "events", "too_much", "stopped"
    started_at_ms: int | None = None
    until_ms: int | None = None
    events: int | None = None
    events_max: int | None = None
    payload_bytes: int | None = None
    actor: str | None = None


class TraceEventRow(msgspec.Struct, omit_defaults=True):
    """An event of a trace."""

    trace: str | None = None
    number: int | None = None
    at_us: int | None = None  # UTC, by the node's clock
    node: str | None = None
    stage: str | None = None  # "received", "resolved", "forwarded", "matched", "queued", "committed", "written", ...
    origin: str | None = None
    client_id: str | None = None
    topic: str | None = None
    packet: int | None = None
    qos: int | None = None
    session: int | None = None
    seq: int | None = None
    partition: int | None = None
    reason: str | None = None
    detail: str | None = None
    payload: bytes | None = None
    carried: bool | None = None  # found only by the message's mark: it belongs to this trace if its origin does
