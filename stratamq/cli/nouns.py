"""The resources that the command line lists: row kind and columns of each.

``listing.py`` creates one command for each row of the table. Columns are fields of the row type
(``wire/messages/query_kinds.py``); ``wide`` columns come last.
"""

from typing import NamedTuple

__all__ = ["NOUNS", "Noun"]


class Noun(NamedTuple):
    """One resource."""

    what: str  # the kind of query
    rows: str  # plural name of its rows
    text: str
    columns: tuple[str, ...]
    wide: tuple[str, ...] = ()
    best: str = ""  # select rows with the largest values of this column; "": in the order of nodes
    merges: bool = False  # a row is merged from parts of several nodes
    tier: str = ""  # the tier to query if several have the kind
    rate: tuple[str, str] = ("", "")  # a counter, and the column with its rate per second


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NOUNS: dict[str, Noun] = {
    "client": Noun(
        "clients",
        "clients",
        "List connected clients, by edge.",
        _names(
            "client_id user state node proto address keep_alive_s expiry_s connected_at_ms inflight queued oldest_s"
        ),
        _names("clean_start subscriptions receive_maximum dropped rtt_p99_ms partition owner_epoch"),
    ),
    "session": Noun(
        "sessions",
        "sessions",
        "List sessions, by storage node.",
        _names("client_id online node queued bytes oldest_s expires_in_s"),
        _names("replicas last_seq will"),
    ),
    "subscription": Noun(
        "subscriptions",
        "subscriptions",
        "List subscriptions, by node.",
        _names("client_id filter qos share no_local retain_as_published retain_handling identifier"),
        _names("partition since_ms node durable partial"),
    ),
    "retained": Noun(
        "retained",
        "retained messages",
        "List retained messages, by partition.",
        _names("topic bytes qos age_s expires_in_s publisher"),
        _names("partition storage origin content_type"),
    ),
    "share": Noun(
        "shares",
        "shares",
        "List shared groups, by filter. OUT/S needs two queries a second apart; omit it with --columns.",
        _names("group filter members online queued oldest_s delivered"),
        _names("skew redispatched"),
        merges=True,
        rate=("delivered", "out/s"),
    ),
    "listener": Noun(
        "listeners",
        "listeners",
        "List listeners of the edges.",
        _names("node listener kind bind state connections connections_max"),
    ),
    "topic": Noun(
        "routes",
        "cached topics",
        "List topics in the route caches of edges.",
        _names("topic node local edges partitions groups"),
        _names("shard reason_code traced"),
        tier="edge",
    ),
    "replica": Noun(
        "replicas",
        "copies",
        "List copies of partitions on storage nodes.",
        _names("partition node role primary epoch op_index commit_index lag_ops in_sync sessions acknowledges"),
        _names("connected queued retained queue_oldest_s transferring log_start"),
    ),
    "storage": Noun(
        "stats",
        "nodes",
        "List metrics of running storage nodes.",
        _names("node ready sessions partitions copies rss_bytes disk_bytes disk_free_bytes queue_oldest_s"),
        _names("started_at_ms version open_files open_files_max cpu_s"),
        tier="storage",
    ),
    "slow": Noun(
        "slow",
        "slow clients",
        "List clients that receive too slowly.",
        _names("client_id node by value unit since_ms"),
        _names("session partition number"),
        best="value",
    ),
    "drops": Noun(
        "drops",
        "reasons for drops",
        "List dropped messages by reason.",
        _names("node reason count last_at_ms last_client_id last_topic"),
        best="count",
    ),
    "journal": Noun(
        "journal",
        "entries",
        "List refusals, drops, kicks, takeovers and session ends, newest first.",
        _names("at_ms node event reason client_id topic detail"),
        _names("origin number left_out"),
        best="at_ms",
    ),
    "log": Noun(
        "log",
        "lines",
        "List the last lines of the nodes' logs, newest first.",
        _names("at_ms node level event message fields"),
        _names("number logger"),
        best="at_ms",
    ),
    "trace": Noun(
        "traces",
        "traces",
        "List traces of the nodes.",
        _names("trace node kind pattern state started_at_ms until_ms events events_max"),
        _names("payload_bytes actor"),
    ),
    "config": Noun(
        "config",
        "settings",
        "List the settings of running nodes.",
        _names("node name value source"),
        _names("default needs_restart"),
    ),
    "stats": Noun(
        "stats",
        "nodes",
        "List metrics of each node.",
        _names(
            "node tier version started_at_ms ready connections sessions partitions copies rss_bytes disk_free_bytes"
        ),
        _names(
            "lease_left_s draining zone cpu_s open_files open_files_max tls_not_after_ms queue_oldest_s incarnation"
        ),
    ),
}
